"""Finds what a request promises about the model's calls and final answer, and which promises are
not enforced."""

from collections.abc import Collection
from typing import Final

from schemas.control import THINKING_BUDGET
from schemas.conversation import Conversation, ToolSpec
from services.families import UnknownFamily, family
from services.families.response_template import InvalidResponseTemplate
from services.guides.calls import Unguidable
from services.guides.turn import TurnForm, turn_grammar
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
    choice, tools = conversation.tool_choice, callable_tools(conversation)
    if conversation.prompt is not None or conversation.sampling.ignore_eos or not tools:
        return set()
    found = {
        "strict": any(tool.strict and tool.kind == "function" for tool in tools),
        GRAMMAR: any(tool.grammar is not None for tool in tools),
        "format": conversation.format is not None,
        "tool_choice": choice.mode in ("any", "tool"),
        "allowed_tools": bool(choice.allowed),
    }
    return {name for name, promised in found.items() if promised}


def callable_tools(conversation: Conversation) -> list[ToolSpec]:
    """The tools that the turn may call."""
    choice = conversation.tool_choice
    if choice.mode == "none":
        return []
    names = {choice.name} if choice.mode == "tool" else set(choice.allowed)
    return [tool for tool in conversation.tools if not names or _named(tool) & names]


def _named(tool: ToolSpec) -> set[str]:
    return {tool.name, f"{tool.namespace}__{tool.name}"} if tool.namespace else {tool.name}


def not_enforced(
    conversation: Conversation, features: Collection[str], family_name: str
) -> list[str]:
    """The promises that an engine with these `features` does not keep. Promises that hold without
    the engine are left out: the parser never returns a call of a tool that is not allowed, and the
    prompt names a single tool.

    Raises LongWork for many tools on the event loop."""
    thinking = conversation.thinking
    budget = (
        conversation.prompt is None
        and thinking.mode != "disabled"
        and thinking.budget_tokens is not None
        and THINKING_BUDGET not in features
    )
    return sorted(
        [
            *_lost_promises(conversation, features, family_name),
            *([THINKING_BUDGET] if budget else []),
        ]
    )


def _lost_promises(
    conversation: Conversation, features: Collection[str], family_name: str
) -> Collection[str]:
    if not conversation.tools:
        return []
    asked = promises(conversation) - {"allowed_tools"}
    tools = callable_tools(conversation)
    if len(tools) == 1:
        asked.discard("tool_choice")
    if not asked or GRAMMAR not in features:
        return asked
    try:
        found = family(family_name)
        forced = conversation.tool_choice.mode in ("any", "tool")
        prefix = found.style.call_prefix(None) if forced else ""
        held = [tool for tool in tools if tool.strict or tool.grammar is not None]
        if (
            len(held) > _LOOP_TOOLS
            or sum(len(t.grammar.definition) for t in held if t.grammar) > _LOOP_CHARS
        ):
            long_work()
        for _ in levels([tool.schema for tool in held]):
            pass
        _, lost = turn_grammar(
            TurnForm(tools=held or tools[:1], forced=forced, prefix=prefix), found
        )
    except (Unguidable, UnknownFamily, InvalidResponseTemplate):
        return asked
    return {promise.partition(" ")[0] for promise in lost}
