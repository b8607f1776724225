"""Finds and replaces the media of conversations. Pure."""

from collections.abc import Callable, Iterable
from itertools import chain
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


def replace_media(
    conversation: Conversation, kind: type[M], new: Callable[[M], Iterable[Text | Media]]
) -> Conversation:
    """Returns the conversation with other parts in place of its media of one class, including media
    in results."""

    def parts_of(part: Part) -> Iterable[Part]:
        if isinstance(part, Result):
            inner = ((new(item) if isinstance(item, kind) else [item]) for item in part.parts)
            return [replace(part, parts=[*chain.from_iterable(inner)])]
        return new(part) if isinstance(part, kind) else [part]

    messages: list[Message] = []
    for message in conversation.messages:
        messages.append(
            replace(message, parts=[*chain.from_iterable(map(parts_of, message.parts))])
        )
    return replace(conversation, messages=messages)
