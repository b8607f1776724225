"""Chooses a few messages, with every shape that occurs, to represent all messages before a place. Pure."""

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from services.templates.chat_template import Message

Block: TypeAlias = tuple[int, int]
"""A range of messages: an assistant's message and what follows, up to the next assistant's message behind others."""

_REASONING = ("reasoning_content", "reasoning", "thinking")
"""Fields of messages, and types of parts."""
_RESPONSE = "<tool_response>"


def window(messages: Sequence[Message], end: int) -> list[Message]:
    """Messages from before `end`, in order: those up to the model's first turn; the user's last message with the turn
    before it; the first and the last turn since; and on both sides of that message the latest of each shape. A window
    with all later messages can be reduced to a window again.

    `end` is the beginning of a model's turn. Where messages become neighbours, the second one begins a turn of the
    model and the first one belongs to another role, as in any conversation.
    """
    blocks = _blocks(messages, end)
    first = blocks[0][0] if blocks else end
    last_user = next((at for at in range(end - 1, first - 1, -1) if is_user(messages[at])), None)
    era = 0
    if last_user is not None:
        era = next((at for at, (_, stop) in enumerate(blocks) if stop > last_user), 0) + 1
    chosen = {era - 1, era, len(blocks) - 1} & set(range(len(blocks)))
    chosen |= _every_shape(messages, blocks, era, len(blocks))
    chosen |= _every_shape(messages, blocks, 0, era)
    return [*messages[:first], *(message for at in sorted(chosen) for message in messages[slice(*blocks[at])])]


def is_user(message: Message) -> bool:
    """Whether the user wrote the message: tools' results may stand in user messages, too."""
    content: Any = message["content"]
    if isinstance(content, list):
        content = content[0].get("text", "") if content else ""
    return message["role"] == "user" and not str(content).startswith(_RESPONSE)


def _blocks(messages: Sequence[Message], end: int) -> list[Block]:
    roles = [message["role"] for message in messages[:end]]
    starts = [at for at, role in enumerate(roles) if role == "assistant" and (at == 0 or roles[at - 1] != "assistant")]
    return list(pairwise([*starts, end]))


def _every_shape(messages: Sequence[Message], blocks: list[Block], start: int, stop: int) -> set[int]:
    """The latest of these blocks that together have every shape of a message."""
    seen: set[Hashable] = set()
    chosen: set[int] = set()
    for at in range(stop - 1, start - 1, -1):
        shapes = {_shape(message) for message in messages[slice(*blocks[at])]}
        if not shapes <= seen:
            seen |= shapes
            chosen.add(at)
    return chosen


def _shape(message: Message) -> Hashable:
    """What templates examine besides the text."""
    if message["role"] != "assistant":
        return is_user(message) or message["role"]
    content: Any = message["content"]
    kinds = {part["type"] for part in content} if isinstance(content, list) else set()
    reasons = any(message.get(name) for name in _REASONING) or not kinds.isdisjoint(_REASONING)
    calls = bool(message.get("tool_calls")) or "tool_call" in kinds
    return reasons, calls, bool(content), isinstance(content, str) and "think" in content
