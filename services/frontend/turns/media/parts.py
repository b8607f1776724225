"""Finds and replaces the media of conversations. Pure."""

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from schemas.conversation import Conversation, Media, Message, Part, Result, Text

M = TypeVar("M", bound=Media)


def media_of(conversation: Conversation) -> list[Media]:
    """Returns the media of a conversation, including media in results."""
    media: list[Media] = []
    for message in conversation.messages:
        for part in message.parts:
            if type(part) is Text:  # most parts; this runs for every part of every request
                continue
            if isinstance(part, Result):
                for inner in part.parts:
                    if isinstance(inner, Media):
                        media.append(inner)
            elif isinstance(part, Media):
                media.append(part)
    return media


def replace_media(conversation: Conversation, kind: type[M], new: Callable[[M], Text | Media]) -> Conversation:
    """Returns the conversation with other parts in place of its media of one class, including media in results."""

    def part_of(part: Part) -> Part:
        if isinstance(part, Result):
            return replace(part, parts=[new(inner) if isinstance(inner, kind) else inner for inner in part.parts])
        return new(part) if isinstance(part, kind) else part

    messages: list[Message] = [
        replace(message, parts=[*map(part_of, message.parts)]) for message in conversation.messages
    ]
    return replace(conversation, messages=messages)
