"""How large a conversation may be beside its bytes: messages, tools, media, nesting. Pure, and the same for each API.

A deep value is a hazard by itself: what decodes, renders or prints it recurses. Arguments of calls are text here; the
preprocessor, which reads them, refuses those that are too deep.
"""

from typing import Any

from msgspec import Struct

from schemas.conversation import Conversation, Media, Result
from schemas.errors import Invalid


class ShapeLimits(Struct, frozen=True):
    """The most that a conversation may have of each."""

    messages: int
    tools: int
    media: int
    nesting: int


def check(conversation: Conversation, limits: ShapeLimits) -> None:
    """Raises Invalid for a conversation that is over a limit."""
    turns, tools = len(conversation.turns), len(conversation.tools)
    if turns > limits.messages:
        raise Invalid(f"The conversation has {turns} messages; the maximum is {limits.messages}.", param="messages")
    if tools > limits.tools:
        raise Invalid(
            f"The request has {tools} tools; the maximum is {limits.tools}.",
            param="tools",
            code="available_tools_limit_exceeded",
        )
    media = _media(conversation)
    if media > limits.media:
        raise Invalid(f"The request has {media} images and documents; the maximum is {limits.media}.", param="messages")
    for tool in conversation.tools:
        if deeper(tool.schema, limits.nesting):
            raise _too_deep(f"The schema of tool '{tool.name[:64]}'", "tools", limits)
    if conversation.format is not None and deeper(conversation.format.schema, limits.nesting):
        raise _too_deep("The schema of the output format", "format", limits)
    if deeper(conversation.template_kwargs, limits.nesting):
        raise _too_deep("chat_template_kwargs", "chat_template_kwargs", limits)


def deeper(value: Any, limit: int) -> bool:
    """Whether objects and lists lie in each other deeper than `limit`; takes no stack."""
    level = [value] if isinstance(value, dict | list) else []
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
            if isinstance(inner, dict | list)
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
