"""How large a conversation may be beside its bytes: messages, tools, media, nesting. Pure, and the same for each API.

A deep value is a hazard by itself: what decodes, renders or prints it recurses. Arguments of calls are text here; the
preprocessor, which reads them, refuses those that are too deep.
"""

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from msgspec import Struct

from schemas.conversation import Conversation, Media, Result, ToolSpec
from schemas.errors import Invalid

_NESTING = (dict, list)


class ShapeLimits(Struct, frozen=True):
    """The most that a conversation may have of each."""

    messages: int
    tools: int
    media: int
    nesting: int


class ShapeCheck:
    """`check` with one set of limits; a tool that was found good is not walked through again while it lives."""

    def __init__(self, limits: ShapeLimits) -> None:
        self._limits = limits
        self._good: WeakValueDictionary[int, ToolSpec] = WeakValueDictionary()

    def __call__(self, conversation: Conversation) -> None:
        """Raises Invalid for a conversation that is over a limit."""
        good = self._good
        fresh = [tool for tool in conversation.tools if good.get(id(tool)) is not tool]
        check(conversation, self._limits, fresh)
        for tool in fresh:
            good[id(tool)] = tool


def check(conversation: Conversation, limits: ShapeLimits, tools: Sequence[ToolSpec] | None = None) -> None:
    """Raises Invalid for a conversation that is over a limit. `tools`: those whose depth is not known; None: all."""
    turns, count = len(conversation.turns), len(conversation.tools)
    if turns > limits.messages:
        raise Invalid(f"The conversation has {turns} messages; the maximum is {limits.messages}.", param="messages")
    if count > limits.tools:
        raise Invalid(
            f"The request has {count} tools; the maximum is {limits.tools}.",
            param="tools",
            code="available_tools_limit_exceeded",
        )
    media = _media(conversation)
    if media > limits.media:
        raise Invalid(f"The request has {media} images and documents; the maximum is {limits.media}.", param="messages")
    for tool in conversation.tools if tools is None else tools:
        if deeper(tool.schema, limits.nesting):
            raise _too_deep(f"The schema of tool '{tool.name[:64]}'", "tools", limits)
    if conversation.format is not None and deeper(conversation.format.schema, limits.nesting):
        raise _too_deep("The schema of the output format", "format", limits)
    if deeper(conversation.template_kwargs, limits.nesting):
        raise _too_deep("chat_template_kwargs", "chat_template_kwargs", limits)


def deeper(value: Any, limit: int) -> bool:
    """Whether objects and lists lie in each other deeper than `limit`; takes no stack."""
    level = [value] if isinstance(value, _NESTING) else []
    depth = 0
    while level:
        depth += 1
        if depth > limit:
            return True
        # By level, not by branch: the list of a level is made by one comprehension for all its members.
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _NESTING)
        ]
    return False


def _media(conversation: Conversation) -> int:
    found = 0
    for turn in conversation.turns:
        for part in turn.parts:
            if isinstance(part, Media):
                found += 1
            elif isinstance(part, Result):
                found += sum(isinstance(inner, Media) for inner in part.parts)
    return found


def _too_deep(what: str, param: str, limits: ShapeLimits) -> Invalid:
    return Invalid(f"{what} is nested too deeply; the maximum is {limits.nesting} levels.", param=param)
