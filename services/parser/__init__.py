"""The parser core: what a model wrote, as one ordered stream of reasoning, text and tool_use blocks.

    parser = open_parser("qwen3_coder", tools=tools, in_reasoning=True)
    events = parser.feed("…text…")
    events = parser.finish(FinishReason.STOP)

Pure: no IO, no clock, no logging. The same text gives the same blocks however it is cut; nothing that was returned is
taken back; the work is linear in the text; no model output raises.
"""

from schemas.conversation import ToolSpec
from services.parser.coercion import Tools
from services.parser.family import Family
from services.parser.registry import UnknownFamily, families, family
from services.parser.trace import Trace
from services.parser.turn import Turn, TurnParser

__all__ = ["Family", "TurnParser", "UnknownFamily", "families", "family", "open_parser"]


def open_parser(
    family: str,
    *,
    tools: list[ToolSpec],
    in_reasoning: bool,
    prefix: str = "",
    calls_as_text: bool = False,
    trace: Trace | None = None,
) -> TurnParser:
    """A parser for one generation of a model of this family (any of its names).

    `in_reasoning`: the prompt ends inside reasoning. `prefix`: what the prompt already says of this turn, behind that
    point; it is not said again, except that a call which it opens is this turn's. Without `tools`, or with
    `calls_as_text`, call markers are text. `trace` hears where each piece of a block came from. Raises `UnknownFamily`.
    """
    found = _family(family)
    tape, blocks = (trace.tape, trace.blocks) if trace is not None else (None, None)
    turn = Turn(Tools(tools), in_reasoning, bool(tools) and not calls_as_text, tape, blocks)
    parser = TurnParser(found.grammar, turn, prefix)
    if trace is not None:
        trace.spoken([])
    return parser


_family = family
