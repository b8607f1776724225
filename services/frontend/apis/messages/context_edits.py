"""Clears thinking or tool results of earlier turns before the model sees them
(`context_management`). Pure.

`clear_thinking_20251015` is applied when the request is parsed. `clear_tool_uses_20250919` starts
at a size of the prompt, and the answer reports the tokens that each edit cleared: `apply_edits`
counts them, but only where an edit has something to clear. `compact_20260112` is in `compaction`.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Message, Reasoning, Result, Text
from schemas.errors import Invalid
from services.frontend.apis.messages import wire

CLEAR_THINKING = "clear_thinking_20251015"
CLEAR_TOOLS = "clear_tool_uses_20250919"
CLEARED = "[Old tool result content cleared]"
"""Replaces a result."""
_DEFAULT_TURNS = 1
_DEFAULT_USES = 3
_DEFAULT_TRIGGER = wire.Threshold("input_tokens", 100_000)

Count: TypeAlias = Callable[[Conversation], Awaitable[int]]
"""Counts the tokens of a conversation's prompt. Raises TurnwireError."""


class Edits(Struct, frozen=True):
    """The edits of a request that may clear something, and what they cleared."""

    before: list[Message] | None = None
    """The messages before thinking was cleared; None where none was cleared."""
    thinking_turns: int = 0
    """The number of turns that lost their thinking."""
    tools: wire.ContextEdit | None = None
    applied: list[dict[str, Any]] = []
    """The edits that cleared something, as the answer reports them."""
    original_tokens: int | None = None
    """The tokens of the prompt without the edits; None where there was nothing to clear."""


def edit_of(management: wire.ContextManagement | None, type: str) -> wire.ContextEdit | None:
    """The edit of a type in a request, if it has one. Raises Invalid for several."""
    edits = [edit for edit in (management.edits if management else None) or () if edit.type == type]
    if len(edits) > 1:
        raise Invalid(
            f"context_management.edits: '{type}' may be set only once",
            param="context_management.edits",
        )
    return edits[0] if edits else None


def thinking_turns(management: wire.ContextManagement | None) -> int | str | None:
    """How many of the last turns keep their thinking, or `all`; None if unspecified. Raises
    Invalid."""
    edit = edit_of(management, CLEAR_THINKING)
    return _kept(edit.keep) if edit else None


def tool_edit(management: wire.ContextManagement) -> wire.ContextEdit | None:
    """The edit that clears tool uses, if the request has one. Raises Invalid."""
    edit = edit_of(management, CLEAR_TOOLS)
    if edit is None:
        return None
    _kept_uses(edit)
    if edit.clear_at_least is not None and edit.clear_at_least.type != "input_tokens":
        raise invalid_edit(
            CLEAR_TOOLS, "clear_at_least", "Input should be a number of `input_tokens`"
        )
    return edit


def forget_thinking(messages: list[Message], kept: int) -> tuple[list[Message], int]:
    """Drops thinking from all but the last `kept` turns that have any. Returns the messages and the
    number of turns changed.

    A tool loop, from one message of the user to the next, counts as one turn.
    """
    out: list[Message] = []
    turns, thought = 0, False
    for message in reversed(messages):
        if message.role == "user":
            thought = False
        if message.role != "assistant" or not any(
            isinstance(part, Reasoning) for part in message.parts
        ):
            out.append(message)
            continue
        if not thought:
            turns, thought = turns + 1, True
        if turns <= kept:
            out.append(message)
            continue
        parts = [part for part in message.parts if not isinstance(part, Reasoning)]
        if parts:
            out.append(replace(message, parts=parts))
    return out[::-1], max(turns - kept, 0)


async def apply_edits(
    conversation: Conversation, edits: Edits, count: Count
) -> tuple[Conversation, Edits]:
    """Returns the conversation as the model sees it, and the edits with what they cleared. Raises
    as `count`."""
    tokens = None
    if edits.before is not None:
        original = await count(replace(conversation, messages=edits.before))
        tokens = await count(conversation)
        cleared = {
            "cleared_thinking_turns": edits.thinking_turns,
            "cleared_input_tokens": max(original - tokens, 0),
        }
        edits = replace(
            edits, applied=[{"type": CLEAR_THINKING, **cleared}], original_tokens=original
        )
    edit = edits.tools
    if edit is None:
        return conversation, edits
    trigger = edit.trigger or _DEFAULT_TRIGGER
    messages, uses = _without_tools(conversation.messages, edit)
    if not uses or (
        trigger.type == "tool_uses" and _tool_uses(conversation.messages) <= trigger.value
    ):
        return conversation, edits
    if tokens is None:
        tokens = await count(conversation)
        edits = replace(edits, original_tokens=tokens)
    if trigger.type == "input_tokens" and tokens <= trigger.value:
        return conversation, edits
    edited = replace(conversation, messages=messages)
    saved = tokens - await count(edited)
    if saved < (edit.clear_at_least.value if edit.clear_at_least is not None else 0):
        return conversation, edits
    cleared = {"cleared_tool_uses": uses, "cleared_input_tokens": max(saved, 0)}
    return edited, replace(edits, applied=[*edits.applied, {"type": CLEAR_TOOLS, **cleared}])


def _tool_uses(messages: list[Message]) -> int:
    return sum(isinstance(part, Call) for message in messages for part in message.parts)


def _without_tools(messages: list[Message], edit: wire.ContextEdit) -> tuple[list[Message], int]:
    """The messages with the older results replaced, and the number of tool uses that this clears."""
    calls = [part for message in messages for part in message.parts if isinstance(part, Call)]
    answered = {
        part.call_id for message in messages for part in message.parts if isinstance(part, Result)
    }
    end = max(len(calls) - _kept_uses(edit), 0)
    excluded = set(edit.exclude_tools or ())
    old = {call.call_id for call in calls[:end]} - {call.call_id for call in calls[end:]}
    cleared = {
        call.call_id
        for call in calls
        if call.call_id in old & answered and call.name not in excluded
    }
    inputs = edit.clear_tool_inputs

    def edit_part(part: Any) -> Any:
        if isinstance(part, Result) and part.call_id in cleared:
            return replace(part, parts=[Text(CLEARED)])
        if isinstance(part, Call) and part.call_id in cleared and inputs:
            return replace(part, arguments="{}") if inputs is True or part.name in inputs else part
        return part

    changed = [
        replace(message, parts=[edit_part(part) for part in message.parts])
        if message.role in ("tool", "assistant")
        else message
        for message in messages
    ]
    return changed, len(cleared)


def _kept_uses(edit: wire.ContextEdit) -> int:
    if edit.keep is None:
        return _DEFAULT_USES
    uses = _number(edit.keep, "tool_uses")
    if uses is None:
        raise invalid_edit(CLEAR_TOOLS, "keep", "Input should be a number of `tool_uses`")
    return uses


def _kept(keep: Any) -> int | str:
    if keep is None:
        return _DEFAULT_TURNS
    if keep == "all" or (isinstance(keep, dict) and keep.get("type") == "all"):
        return "all"
    turns = _number(keep, "thinking_turns")
    if not turns:
        raise invalid_edit(
            CLEAR_THINKING, "keep", "Input should be 'all' or a number of `thinking_turns` from 1"
        )
    return turns


def _number(keep: Any, type: str) -> int | None:
    """The number of `{"type": …, "value": …}`; None for any other value."""
    value = keep.get("value") if isinstance(keep, dict) and keep.get("type") == type else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def invalid_edit(type: str, field: str, reason: str) -> Invalid:
    """The error for a field of an edit."""
    place = f"context_management.edits.{type}.{field}"
    return Invalid(f"{place}: {reason}", param=place)
