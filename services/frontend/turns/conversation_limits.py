"""Limits the number of a conversation's messages, tools and media, and the size and nesting of its
JSON. Pure, for all APIs.

Deep values are dangerous, because code that decodes, renders or prints them recurses. Arguments of
calls are text here; the preprocessor parses them and refuses those that are too deep.
"""

from typing import Any

from msgspec import Struct

from schemas.conversation import Conversation, Media
from schemas.errors import Invalid
from services.images.parts import media_of
from services.runtime.long_work import levels

MAX_VALUES = 50_000
"""Limit of the values in a schema: a megabyte, and the interpreter's lock is held for up to 50 ms
for its grammar."""


class ConversationLimits(Struct, frozen=True):
    """Maximum numbers of messages, tools and media, and levels of nesting."""

    messages: int
    tools: int
    media: int
    nesting: int

    def check(self, conversation: Conversation) -> list[Media]:
        """Returns the media of a conversation. Raises Invalid if it exceeds a limit, LongWork as
        `levels`."""
        media = media_of(conversation)
        messages = len(conversation.messages)
        tools = len(conversation.tools)
        if messages > self.messages:
            raise Invalid(
                f"The conversation has {messages} messages; the maximum is {self.messages}.",
                param="messages",
            )
        if tools > self.tools:
            raise Invalid(
                f"The request has {tools} tools; the maximum is {self.tools}.",
                param="tools",
                code="available_tools_limit_exceeded",
            )
        if len(media) > self.media:
            raise Invalid(
                f"The request has {len(media)} images and documents; the maximum is {self.media}.",
                param="messages",
            )
        schemas = [tool.schema for tool in conversation.tools]
        if _excess(schemas, self.nesting + 1):  # all at once: that is faster
            for tool in conversation.tools:
                self._check_json(tool.schema, f"The schema of tool '{tool.name[:64]}'", "tools")
        if conversation.format is not None:
            self._check_json(
                conversation.format.schema, "The schema of the output format", "format"
            )
        self._check_json(
            conversation.template_kwargs, "chat_template_kwargs", "chat_template_kwargs"
        )
        return media

    def _check_json(self, value: Any, name: str, param: str) -> None:
        excess = _excess(value, self.nesting)
        if excess:
            raise Invalid(f"{name} {excess}.", param=param)


def _excess(value: Any, nesting: int) -> str:
    """Returns why decoded JSON is too large or too deep; "" if it is not."""
    values = 0
    for depth, level in enumerate(levels(value), 1):
        values += sum(map(len, level))
        if depth > nesting:
            return f"is nested too deeply; the maximum is {nesting} levels"
        if values > MAX_VALUES:
            return f"has too many values; the maximum is {MAX_VALUES}"
    return ""
