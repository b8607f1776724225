"""Clears thinking or tool results of earlier turns before the model sees them
(`context_management`). Pure.

`clear_thinking_20251015` is applied when the request is parsed. `clear_tool_uses_20250919` starts
at a size of the prompt, and the answer reports the tokens that each edit cleared:
`context_management` counts them, but only where an edit has something to clear. `compact_20260112`
is in `compaction`.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import (
    Call,
    Conversation,
    Message,
    Part,
    Reasoning,
    Result,
    Text,
    ToolReference,
)
from schemas.errors import Invalid
from services.frontend.apis.messages import wire

CLEAR_THINKING = "clear_thinking_20251015"
CLEAR_TOOLS = "clear_tool_uses_20250919"
CLEARED = "[Old tool result content cleared]"
"""Replaces a result."""
_DEFAULT_TURNS = 1
_DEFAULT_USES = 3
DEFAULT_TRIGGER = wire.Threshold("input_tokens", 100_000)
"""The size from which tool uses are cleared."""

ClearedInputs: TypeAlias = bool | list[str] | None
"""The tools with arguments that are cleared, too: all of them, those with these names, or none."""


class Edits(Struct, frozen=True):
    """The edits of a request that may clear something, and what they cleared."""

    before: list[Message] = []
    """The messages before thinking was cleared; empty where none was cleared."""
    thinking_turns: int = 0
    """The number of turns that lost their thinking."""
    tools: wire.ContextEdit | None = None
    applied: list[dict[str, Any]] = []
    """The edits that cleared something, as the answer reports them."""
    original_tokens: int | None = None
    """The tokens of the prompt without the edits; None where there was nothing to clear."""

    def with_applied(self, type: str, **cleared: int) -> "Edits":
        """Returns the edits with one more that cleared something."""
        return replace(self, applied=[*self.applied, {"type": type, **cleared}])


class LocatedEdit(Struct, frozen=True):
    """An edit, and its place among the edits of the request."""

    index: int
    edit: wire.ContextEdit

    def invalid(self, field: str, reason: str) -> Invalid:
        """The error for one of its fields."""
        field_path = f"context_management.edits.{self.index}.{self.edit.type}.{field}"
        return Invalid(f"{field_path}: {reason}", param=field_path)


def edit_of(management: wire.ContextManagement | None, type: str) -> LocatedEdit | None:
    """The edit of a type in a request, if it has one. Raises Invalid for several."""
    if management is None:
        return None
    edits = [
        LocatedEdit(index, edit)
        for index, edit in enumerate(management.edits or ())
        if edit.type == type
    ]
    if len(edits) > 1:
        raise Invalid(
            f"context_management.edits: '{type}' may be set only once",
            param="context_management.edits",
        )
    return edits[0] if edits else None


def thinking_turns(management: wire.ContextManagement | None) -> int | str | None:
    """How many of the last turns keep their thinking, or `all`; None if unspecified. Raises
    Invalid."""
    located = edit_of(management, CLEAR_THINKING)
    if located is None:
        return None
    turns = _kept_turns(located.edit.keep)
    if turns is None:
        raise located.invalid(
            "keep", "Input should be 'all' or a number of `thinking_turns` from 1"
        )
    return turns


def read_edits(
    management: wire.ContextManagement | None, messages: list[Message], cleared_turns: int
) -> Edits | None:
    """The edits of a request, if it has a `context_management`. Raises Invalid.

    `messages`: those before thinking was cleared from `cleared_turns` of their turns.
    """
    if management is None:
        return None
    before: list[Message] = []
    if cleared_turns:
        before = messages
    return Edits(before, cleared_turns, _tool_edit(management))


def _tool_edit(management: wire.ContextManagement) -> wire.ContextEdit | None:
    """The edit that clears tool uses, if the request has one. Raises Invalid."""
    located = edit_of(management, CLEAR_TOOLS)
    if located is None:
        return None
    edit = located.edit
    if edit.keep is not None and _number(edit.keep, "tool_uses") is None:
        raise located.invalid("keep", "Input should be a number of `tool_uses`")
    if edit.clear_at_least is not None and edit.clear_at_least.type != "input_tokens":
        raise located.invalid("clear_at_least", "Input should be a number of `input_tokens`")
    return edit


def clear_thinking(
    conversation: Conversation, keep_turns: int | str | None
) -> tuple[Conversation, int]:
    """Keeps the thinking of the last turns that have any, as `thinking_turns` returned it. Returns
    the conversation and the number of turns that lost their thinking."""
    if keep_turns is None:
        return conversation, 0
    thinking = replace(conversation.thinking, history="keep")
    messages = conversation.messages
    cleared_turns = 0
    if isinstance(keep_turns, int):
        messages, cleared_turns = _forget_thinking(messages, keep_turns)
    return replace(conversation, messages=messages, thinking=thinking), cleared_turns


def _forget_thinking(messages: list[Message], keep_turns: int) -> tuple[list[Message], int]:
    """Drops thinking from all but the last `keep_turns` turns that have any. Returns the messages
    and the number of turns changed.

    A tool loop, from one message of the user to the next, counts as one turn.
    """
    remaining: list[Message] = []
    turns = 0
    is_counted = False
    """The current turn has thinking, and is counted in `turns`."""
    for message in reversed(messages):
        if message.role == "user":
            is_counted = False
        if message.role != "assistant" or not _has_reasoning(message):
            remaining.append(message)
            continue
        if not is_counted:
            turns += 1
            is_counted = True
        if turns <= keep_turns:
            remaining.append(message)
            continue
        parts = [part for part in message.parts if not isinstance(part, Reasoning)]
        if parts:
            remaining.append(replace(message, parts=parts))
    return remaining[::-1], max(turns - keep_turns, 0)


def exceeds_uses(messages: list[Message], trigger: wire.Threshold) -> bool:
    """Whether a conversation has more tool uses than a trigger of that kind allows; True for a
    trigger of another kind."""
    return trigger.type != "tool_uses" or len([*_calls(messages)]) > trigger.value


def clear_tool_uses(messages: list[Message], edit: wire.ContextEdit) -> tuple[list[Message], int]:
    """The messages with the older results replaced, and the number of tool uses cleared."""
    cleared = _cleared_calls(messages, edit)
    changed = [
        _clear_parts(message, cleared, edit.clear_tool_inputs)
        if message.role in ("tool", "assistant")
        else message
        for message in messages
    ]
    return changed, len(cleared)


def _has_reasoning(message: Message) -> bool:
    return any(isinstance(part, Reasoning) for part in message.parts)


def _parts(messages: list[Message]) -> Iterator[Part]:
    for message in messages:
        yield from message.parts


def _calls(messages: list[Message]) -> Iterator[Call]:
    for part in _parts(messages):
        if isinstance(part, Call):
            yield part


def _cleared_calls(messages: list[Message], edit: wire.ContextEdit) -> set[str]:
    """The ids of the calls that are cleared: the older ones that have a result. One that loads
    tools stays: nothing else describes them."""
    calls = [*_calls(messages)]
    first_kept = max(len(calls) - _kept_uses(edit), 0)
    kept_ids = {call.call_id for call in calls[first_kept:]}
    results = [part for part in _parts(messages) if isinstance(part, Result)]
    answered = {result.call_id for result in results if not _loads_tools(result)}
    excluded = set(edit.exclude_tools or ())
    old = {call.call_id for call in calls[:first_kept] if call.name not in excluded}
    return (old - kept_ids) & answered


def _loads_tools(result: Result) -> bool:
    return any(isinstance(part, ToolReference) for part in result.parts)


def _clear_parts(message: Message, cleared: set[str], inputs: ClearedInputs) -> Message:
    return replace(message, parts=[_clear_part(part, cleared, inputs) for part in message.parts])


def _clear_part(part: Part, cleared: set[str], inputs: ClearedInputs) -> Part:
    if isinstance(part, Result) and part.call_id in cleared:
        return replace(part, parts=[Text(CLEARED)])
    if isinstance(part, Call) and part.call_id in cleared and _clears_input(part, inputs):
        return replace(part, arguments="{}")
    return part


def _clears_input(call: Call, inputs: ClearedInputs) -> bool:
    if isinstance(inputs, list):
        return call.name in inputs
    return bool(inputs)


def _kept_uses(edit: wire.ContextEdit) -> int:
    uses = _number(edit.keep, "tool_uses")
    if uses is None:
        return _DEFAULT_USES
    return uses


def _kept_turns(keep: Any) -> int | str | None:
    """The number of turns, or `all`; None for an invalid value."""
    if keep is None:
        return _DEFAULT_TURNS
    if keep == "all" or (isinstance(keep, dict) and keep.get("type") == "all"):
        return "all"
    return _number(keep, "thinking_turns") or None


def _number(keep: Any, type: str) -> int | None:
    """The number of `{"type": …, "value": …}`; None for any other value."""
    if not isinstance(keep, dict) or keep.get("type") != type:
        return None
    value = keep.get("value")
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return None
    return value
