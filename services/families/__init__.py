"""Parses the output of language models into reasoning, text and tool_use blocks, and writes turns in their formats.

docs/families.md has an example.

No IO, no clock, no logging. The same text gives the same blocks however it is cut; an event that was returned stays
true; the work is linear in the text; no model output raises.
"""

from collections.abc import Sequence

from schemas.conversation import ToolSpec
from services.families.family import Family
from services.families.grammar.scanner import BlockWriter, Scanner
from services.families.grammar.turn import TurnParser, TurnState
from services.families.registry import UnknownFamily, families, family, reasoning_family
from services.families.registry import family as _family
from services.families.tool_types import Tools

__all__ = ["Family", "TurnParser", "UnknownFamily", "families", "family", "open_parser", "reasoning_family"]


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
    """A parser for one generation.

    Args:
        family: any name of the family, or of a pair (`CALLS+REASONING`); see `registry.family` and docs/families.md.
        tools: the tools of the request. Their schemas give the types of arguments that a format writes as bare text.
            Without tools call markers are text.
        in_reasoning: the prompt ends inside reasoning.
        prefix: the beginning of the turn if it is part of the prompt, as in a forced call. Only a call that it opens
            is among the events.
        calls_as_text: call markers are text although there are tools.
        scanner: the parser's input and `blocks` its output, for a caller that traces the text of blocks to its tokens.

    Raises:
        UnknownFamily: no family has this name, or the two of a pair do not fit.
    """
    turn = TurnState(Tools(tools), in_reasoning, bool(tools) and not calls_as_text, scanner, blocks)
    return TurnParser(_family(family).grammar, turn, prefix)
