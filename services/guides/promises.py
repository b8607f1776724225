"""Finds what a request promises about the model's calls and final answer, and which promises are
not enforced."""

from collections.abc import Collection, Sequence
from typing import Final

from schemas.control import THINKING_BUDGET
from schemas.conversation import Conversation, ToolSpec
from services.families import Family, UnknownFamily, find_family
from services.families.description.fields import InvalidResponseTemplate
from services.guides.turn_grammar import TurnForm, turn_grammar
from services.guides.writer import Unguidable
from services.runtime.long_work import levels, long_work

GRAMMAR: Final = "grammar"
"""The engine feature of decoding by a grammar. Also the promise that a freeform tool's input fits
its grammar."""
_LOOP_TOOLS: Final = 256
_LOOP_CHARS: Final = 16_384
"""Limits of the tools, and of the characters of their grammars, that are examined on the event
loop."""


def promises(conversation: Conversation) -> set[str]:
    """The promises that a grammar of the turn keeps, named by the APIs' fields: `strict`,
    `grammar`, `format` (beside tools), `tool_choice` and `allowed_tools`. Empty for a turn without
    callable tools."""
    if not may_call(conversation):
        return set()
    tools = callable_tools(conversation)
    choice = conversation.tool_choice
    promised = {
        "strict": any(tool.strict and tool.kind == "function" for tool in tools),
        GRAMMAR: any(tool.grammar is not None for tool in tools),
        "format": conversation.format is not None,
        "tool_choice": choice.mode in ("any", "tool"),
        "allowed_tools": bool(choice.allowed),
    }
    return {name for name, is_promised in promised.items() if is_promised}


def may_call(conversation: Conversation) -> bool:
    """Whether the turn may have calls that a grammar can guide."""
    if conversation.prompt is not None or conversation.sampling.ignore_eos:
        return False
    return bool(callable_tools(conversation))


def callable_tools(conversation: Conversation) -> list[ToolSpec]:
    """The tools that the turn may call."""
    choice = conversation.tool_choice
    if choice.mode == "none":
        return []
    if choice.mode == "tool":
        chosen = choice.chosen(conversation.tools)
        return [] if chosen is None else [chosen]
    allowed = set(choice.allowed)
    return [tool for tool in conversation.tools if not allowed or tool.names & allowed]


def not_enforced(
    conversation: Conversation, features: Collection[str], family_name: str
) -> list[str]:
    """The promises that an engine with these `features` does not keep. Promises that hold without
    the engine are left out: the parser never returns a call of a tool that is not allowed, and the
    prompt names a single tool.

    Raises LongWork for many tools on the event loop."""
    lost = set(_lost_promises(conversation, features, family_name))
    if _has_budget(conversation) and THINKING_BUDGET not in features:
        lost.add(THINKING_BUDGET)
    return sorted(lost)


def _has_budget(conversation: Conversation) -> bool:
    thinking = conversation.thinking
    if conversation.prompt is not None or thinking.mode == "disabled":
        return False
    return thinking.budget_tokens is not None


def _lost_promises(
    conversation: Conversation, features: Collection[str], family_name: str
) -> Collection[str]:
    if not conversation.tools:
        return []
    promised = promises(conversation) - {"allowed_tools"}
    tools = callable_tools(conversation)
    if len(tools) == 1:
        promised.discard("tool_choice")
    if not promised or GRAMMAR not in features:
        return promised

    forced = conversation.tool_choice.mode in ("any", "tool")
    try:
        return _lost_by_grammar(tools, find_family(family_name), forced=forced)
    except (Unguidable, UnknownFamily, InvalidResponseTemplate):
        return promised


def _lost_by_grammar(tools: Sequence[ToolSpec], family: Family, *, forced: bool) -> set[str]:
    """The promises that the grammar of a turn cannot keep. Raises Unguidable where there is no
    grammar."""
    prefix = ""
    if forced:
        prefix = family.style.call_prefix(None)
    restricted = [tool for tool in tools if tool.strict or tool.grammar is not None]
    _check_loop(restricted)
    form = TurnForm(tools=restricted or tools[:1], forced=forced, prefix=prefix)
    _, lost = turn_grammar(form, family)
    return {promise.partition(" ")[0] for promise in lost}


def _check_loop(tools: Sequence[ToolSpec]) -> None:
    """Raises LongWork on the event loop, where these tools would take too long."""
    grammar_chars = sum(len(tool.grammar.definition) for tool in tools if tool.grammar is not None)
    if len(tools) > _LOOP_TOOLS or grammar_chars > _LOOP_CHARS:
        long_work()
    for _ in levels([tool.schema for tool in tools]):
        pass
