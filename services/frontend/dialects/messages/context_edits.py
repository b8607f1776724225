"""`context_management`: which thinking of earlier turns stays (apis.md A.2).

`clear_thinking_20251015` is done: `keep: "all"` holds against a model whose own rule is to forget, a number of turns
leaves so many. The other edits (`clear_tool_uses_20250919`, `compact_20260112`) set in at a number of tokens, and the
answer must tell how many they cleared; here no API counts tokens, so they are accepted and not done, and the answer's
`applied_edits` names none.
"""

from typing import Any

import msgspec

from schemas.conversation import Reasoning, Turn
from schemas.errors import Invalid
from services.frontend.dialects.messages.wire import ContextManagement

CLEAR_THINKING = "clear_thinking_20251015"
_DEFAULT_TURNS = 1


def thinking_turns(given: ContextManagement | None) -> int | str | None:
    """How many of the last turns keep their thinking, or `all`; None where the request does not say. Raises Invalid."""
    edits = (given.edits if given else None) or []
    kept = [edit.keep for edit in edits if edit.type == CLEAR_THINKING]
    return _kept(kept[-1]) if kept else None


def forget_thinking(turns: list[Turn], kept: int) -> list[Turn]:
    """The turns, with thinking only in the last `kept` of the assistant's that have any.

    A tool loop is one turn of the assistant, from what the user said to what he says next: within it, calls keep the
    thinking that led to them.
    """
    out: list[Turn] = []
    seen, thought = 0, False
    for turn in reversed(turns):
        if turn.role == "user":
            thought = False
        if turn.role != "assistant" or not any(isinstance(part, Reasoning) for part in turn.parts):
            out.append(turn)
            continue
        if not thought:
            seen, thought = seen + 1, True
        if seen <= kept:
            out.append(turn)
            continue
        parts = [part for part in turn.parts if not isinstance(part, Reasoning)]
        if parts:
            out.append(msgspec.structs.replace(turn, parts=parts))
    return out[::-1]


def _kept(keep: Any) -> int | str:
    if keep is None:
        return _DEFAULT_TURNS
    if keep == "all" or (isinstance(keep, dict) and keep.get("type") == "all"):
        return "all"
    value = keep.get("value") if isinstance(keep, dict) and keep.get("type") == "thinking_turns" else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        place = f"context_management.edits.{CLEAR_THINKING}.keep"
        raise Invalid(f"{place}: Input should be 'all' or a number of `thinking_turns` from 1", param=place)
    return value
