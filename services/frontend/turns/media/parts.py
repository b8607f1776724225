"""Finds the media of a conversation. Pure."""

from schemas.conversation import Conversation, Media, Result, Text


def media_of(conversation: Conversation) -> list[Media]:
    """The media of a conversation, those in results included."""
    found: list[Media] = []
    for turn in conversation.turns:
        for part in turn.parts:
            if type(part) is Text:  # most parts; this runs for every part of every request
                continue
            if isinstance(part, Result):
                for inner in part.parts:
                    if isinstance(inner, Media):
                        found.append(inner)
            elif isinstance(part, Media):
                found.append(part)
    return found
