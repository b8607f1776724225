"""Which messages stand for all that come before a place: few, and of every sort that there is. Pure."""

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from services.preprocessor.template import Message

Block: TypeAlias = tuple[int, int]
"""An assistant's message and what follows it, up to the next one that has something between: a range of messages."""

_REASONING = ("reasoning_content", "reasoning", "thinking")
"""Fields of messages, and types of parts."""
_RESPONSE = "<tool_response>"


def window(messages: Sequence[Message], end: int) -> list[Message]:
    """Messages from before `end`, in order: the first ones up to the model's first turn, the user's last message with
    the turn before it, the first and the last turn since, and on both sides of that message the latest of each shape
    that a message has there. So what was chosen, with all that came since, stands for the whole when the next choice is
    made.

    `end` is where a turn of the model begins. Wherever two messages touch that did not, the second begins a turn of
    the model and the first is none of its own: what follows what is as in a conversation.
    """
    blocks = _blocks(messages, end)
    first = blocks[0][0] if blocks else end
    asked = _last_user(messages, first, end)
    era = next((at for at, (_, stop) in enumerate(blocks) if stop > asked), 0) + 1 if asked is not None else 0
    chosen = {era - 1, era, len(blocks) - 1} & set(range(len(blocks)))
    chosen |= _every_shape(messages, blocks, era, len(blocks))
    chosen |= _every_shape(messages, blocks, 0, era)
    return [*messages[:first], *(message for at in sorted(chosen) for message in messages[slice(*blocks[at])])]


def is_user(message: Message) -> bool:
    """Whether it is the user's own word, and not a tool's answer in the user's place."""
    content: Any = message["content"]
    if isinstance(content, list):
        content = content[0].get("text", "") if content else ""
    return message["role"] == "user" and not str(content).startswith(_RESPONSE)


def _blocks(messages: Sequence[Message], end: int) -> list[Block]:
    roles = [message["role"] for message in messages[:end]]
    starts = [at for at, role in enumerate(roles) if role == "assistant" and (at == 0 or roles[at - 1] != "assistant")]
    return list(pairwise([*starts, end]))


def _last_user(messages: Sequence[Message], first: int, end: int) -> int | None:
    return next((at for at in range(end - 1, first - 1, -1) if is_user(messages[at])), None)


def _every_shape(messages: Sequence[Message], blocks: list[Block], start: int, stop: int) -> set[int]:
    """The latest blocks among these in which every shape of a message is to be found."""
    seen: set[Hashable] = set()
    chosen: set[int] = set()
    for at in range(stop - 1, start - 1, -1):
        shapes = {_shape(message) for message in messages[slice(*blocks[at])]}
        if not shapes <= seen:
            seen |= shapes
            chosen.add(at)
    return chosen


def _shape(message: Message) -> Hashable:
    """What templates are known to look at beside the text."""
    if message["role"] != "assistant":
        return is_user(message) or message["role"]
    content: Any = message["content"]
    kinds = {part["type"] for part in content} if isinstance(content, list) else set()
    thinks = any(message.get(name) for name in _REASONING) or not kinds.isdisjoint(_REASONING)
    calls = bool(message.get("tool_calls")) or "tool_call" in kinds
    return thinks, calls, bool(content), isinstance(content, str) and "think" in content
