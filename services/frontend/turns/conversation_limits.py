"""Limits the number of a conversation's messages, tools and media, and the nesting of its JSON. Pure, for all APIs.

A deep value is a hazard by itself: whatever decodes, renders or prints it recurses. Arguments of calls are text here;
the preprocessor, which parses them, refuses those that are too deep.
"""

from typing import Any
from weakref import WeakValueDictionary

from msgspec import Struct

from schemas.conversation import Conversation, Media, ToolSpec
from schemas.errors import Invalid
from services.frontend.turns.media.parts import media_of


class ConversationLimits(Struct, frozen=True):
    """The maximum of each."""

    messages: int
    tools: int
    media: int
    nesting: int


class ConversationCheck:
    """Checks conversations. A tool that passed is not walked again while it lives."""

    def __init__(self, limits: ConversationLimits) -> None:
        self._limits = limits
        self._passed: WeakValueDictionary[int, ToolSpec] = WeakValueDictionary()

    def __call__(self, conversation: Conversation) -> list[Media]:
        """Returns the media of the conversation. Raises Invalid for a conversation over a limit."""
        limits = self._limits
        found = media_of(conversation)
        turns, tools, media = len(conversation.turns), len(conversation.tools), len(found)
        if turns > limits.messages:
            raise Invalid(f"The conversation has {turns} messages; the maximum is {limits.messages}.", param="messages")
        if tools > limits.tools:
            raise Invalid(
                f"The request has {tools} tools; the maximum is {limits.tools}.",
                param="tools",
                code="available_tools_limit_exceeded",
            )
        if media > limits.media:
            raise Invalid(
                f"The request has {media} images and documents; the maximum is {limits.media}.", param="messages"
            )
        for tool in conversation.tools:
            if self._passed.get(id(tool)) is not tool:
                self._check_depth(tool.schema, f"The schema of tool '{tool.name[:64]}'", "tools")
                self._passed[id(tool)] = tool
        if conversation.format is not None:
            self._check_depth(conversation.format.schema, "The schema of the output format", "format")
        self._check_depth(conversation.template_kwargs, "chat_template_kwargs", "chat_template_kwargs")
        return found

    def _check_depth(self, value: Any, name: str, param: str) -> None:
        if deeper(value, self._limits.nesting):
            raise Invalid(f"{name} is nested too deeply; the maximum is {self._limits.nesting} levels.", param=param)


def deeper(value: Any, limit: int) -> bool:
    """Returns whether objects and lists are nested deeper than `limit`, without recursion."""
    level = [value] if isinstance(value, dict | list) else []
    depth = 0
    while level:
        depth += 1
        if depth > limit:
            return True
        # By level, not by branch: one comprehension makes the list of a level for all its members.
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return False
