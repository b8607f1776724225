"""Finds the media of a conversation. Pure."""

from collections.abc import Iterable

from schemas.conversation import Conversation, Media, Result, Text, Turn
from services.frontend.turns.known_turns import SessionTurns


def media_of(conversation: Conversation) -> list[Media]:
    """The media of a conversation, those in results included."""
    turns = conversation.turns
    if isinstance(turns, SessionTurns):
        return turns.known.media + media_in(turns[len(turns.known.turns) :])
    return media_in(turns)


def media_in(turns: Iterable[Turn]) -> list[Media]:
    """The media of turns."""
    found: list[Media] = []
    for turn in turns:
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
