"""Limits the number of a conversation's messages, tools and media, and the nesting of its JSON. Pure, for all APIs.

Deep values are dangerous, because code that decodes, renders or prints them recurses. Arguments of calls are text here;
the preprocessor parses them and refuses those that are too deep.
"""

from typing import Any

from msgspec import Struct

from schemas.conversation import Conversation, Media
from schemas.errors import Invalid
from services.frontend.turns.media.notice import media_of
from services.runtime.long_work import levels


class ConversationLimits(Struct, frozen=True):
    """Maximum numbers of messages, tools and media, and levels of nesting."""

    messages: int
    tools: int
    media: int
    nesting: int

    def check(self, conversation: Conversation) -> list[Media]:
        """Returns the media of a conversation. Raises Invalid if it exceeds a limit, LongWork as `levels`."""
        media = media_of(conversation)
        messages, tools = len(conversation.messages), len(conversation.tools)
        if messages > self.messages:
            raise Invalid(
                f"The conversation has {messages} messages; the maximum is {self.messages}.", param="messages"
            )
        if tools > self.tools:
            raise Invalid(
                f"The request has {tools} tools; the maximum is {self.tools}.",
                param="tools",
                code="available_tools_limit_exceeded",
            )
        if len(media) > self.media:
            raise Invalid(
                f"The request has {len(media)} images and documents; the maximum is {self.media}.", param="messages"
            )
        if is_deeper([tool.schema for tool in conversation.tools], self.nesting + 1):  # all at once: that is faster
            for tool in conversation.tools:
                self._check_depth(tool.schema, f"The schema of tool '{tool.name[:64]}'", "tools")
        if conversation.format is not None:
            self._check_depth(conversation.format.schema, "The schema of the output format", "format")
        self._check_depth(conversation.template_kwargs, "chat_template_kwargs", "chat_template_kwargs")
        return media

    def _check_depth(self, value: Any, name: str, param: str) -> None:
        if is_deeper(value, self.nesting):
            raise Invalid(f"{name} is nested too deeply; the maximum is {self.nesting} levels.", param=param)


def is_deeper(value: Any, limit: int) -> bool:
    """Returns whether the objects and lists of decoded JSON are nested deeper than `limit`, without recursion."""
    return any(depth > limit for depth, _ in enumerate(levels(value), 1))
