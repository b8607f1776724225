"""Holds the turns of a request of which the first are known, and encodes only the others. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from schemas.conversation import Conversation, Media, Turn
from schemas.frames import TurnRequest

_encode = msgspec.json.Encoder().encode


class KnownTurns(Struct, eq=False):
    """Turns with which several requests begin. Shared by them: not to be changed, but for `noticed`."""

    turns: list[Turn]
    json: bytes
    """As JSON, with a comma between two."""
    media: list[Media]
    noticed: bool = True
    """False: none of them is known to end with a note of this server (`media.notice`)."""


class SessionTurns(list[Turn]):
    """All turns of a request that begins with known ones."""

    def __init__(self, turns: Sequence[Turn], known: KnownTurns) -> None:
        super().__init__(turns)
        self.known = known


def encode_request(request: TurnRequest) -> bytes:
    """The request as JSON. Known turns are not encoded again."""
    conversation: Conversation = request.conversation
    turns = conversation.turns
    # Comparing takes no time for the very same objects, and a list that was changed in place is never written wrongly.
    if isinstance(turns, SessionTurns) and turns[: len(turns.known.turns)] == turns.known.turns:
        written: list[Any] = [Raw(turns.known.json), *turns[len(turns.known.turns) :]]
        conversation = msgspec.structs.replace(conversation, turns=written)
        request = msgspec.structs.replace(request, conversation=conversation)
    return _encode(request)
