"""Parses the output of language models into reasoning, text and tool_use blocks, and writes turns
in their formats.

docs/families.md has an example.

No IO, no clock, no logging. The blocks do not depend on how the text is split into pieces; a
returned event is never revised; the work is linear in the length of the text; no model output
raises an exception.
"""

from collections.abc import Sequence

from schemas.conversation import ToolSpec
from services.families.family import Family
from services.families.grammar.scanner import BlockWriter, Scanner
from services.families.grammar.turn_parser import TurnParser
from services.families.grammar.turn_state import TurnState
from services.families.registry import UnknownFamily, families, find_family, find_reasoning_family
from services.families.tool_types import Tools

__all__ = [
    "Family",
    "TurnParser",
    "UnknownFamily",
    "families",
    "find_family",
    "find_reasoning_family",
    "open_parser",
]


def open_parser(
    family: str,
    *,
    tools: Sequence[ToolSpec] = (),
    in_reasoning: bool = False,
    prefix: str = "",
    calls_as_text: bool = False,
    scanner: Scanner | None = None,
    blocks: BlockWriter | None = None,
) -> TurnParser:
    """Returns a parser for one generation.

    Args:
        family: any name of the family, or of a pair (`CALLS+REASONING`); see `find_family` and
            docs/families.md.
        tools: the tools of the request. Their schemas give the types of arguments that a format
            writes as bare text. Without tools call markers are text.
        in_reasoning: the prompt ends inside reasoning.
        prefix: the beginning of the turn if it is part of the prompt, as in a forced call. It adds
            nothing to the events except a call that it opens.
        calls_as_text: call markers are text even though there are tools.
        scanner: the parser's input, for a caller that traces the text of blocks to its tokens.
        blocks: the parser's output, for the same purpose.

    Raises:
        UnknownFamily: no family has this name, or the two families of a pair do not fit together.
    """
    turn = TurnState(Tools(tools), in_reasoning, bool(tools) and not calls_as_text, scanner, blocks)
    return TurnParser(find_family(family).grammar, turn, prefix)
