"""Parses the turns of one parser process into turn events. Pure; `service` connects it to the bus.

A turn is parsed from its first token, and its stream has all that is needed: the same tokens make
the same blocks, ids and seals in every shard. So a shard may die, or a stream may come twice, and
the frontend still gets one turn.
"""

from typing import Final

import msgspec

from schemas.control import Replay, StreamPosition
from schemas.errors import STREAM_GONE
from schemas.frames import TokenEntry
from schemas.requests import ABSENT, ParseContext
from services.families import find_family
from services.families.family import VERBATIM
from services.parser.contexts import ContextDecoder, frontend_of
from services.parser.traced_parse import TracedParse
from services.parser.turn_parse import TurnParse
from services.parser.turn_stream import TurnStream
from services.runtime.storage.seal import Sealer
from services.tokenization.detokenizer import FamilyVocabulary, Vocabulary

MAX_FAMILIES: Final = 16
"""Families with a vocabulary: the model's one, `VERBATIM`, and those that requests describe."""


class Shard:
    """All turns of one parser process."""

    def __init__(self, vocabulary: Vocabulary, sealer: Sealer) -> None:
        self._tokens = vocabulary
        self._vocabularies: dict[str, FamilyVocabulary] = {}
        """Family → its vocabulary."""
        self._sealer = sealer
        self._contexts = ContextDecoder()
        self.turns: dict[str, TurnParse] = {}

    def parse(self, entry: TokenEntry, worker: str) -> TurnParse | StreamPosition | None:
        """Parses an entry.

        Returns the turn if there are new events, the `StreamPosition` to replay from if tokens are
        missing, or None if the entry has nothing new. Propagates errors of the parser.
        """
        parse = self.turns.get(entry.turn)
        if parse is None or entry.attempt > parse.stream.attempt:
            return self._take_first(entry, worker)
        if entry.attempt < parse.stream.attempt or parse.ended:
            return None
        if _leaves_gap(entry, parse):
            return parse.stream.position
        return parse if parse.add(entry) else None

    def _take_first(self, entry: TokenEntry, worker: str) -> TurnParse | StreamPosition | None:
        if entry.context == ABSENT:
            # The replay of a stream that is gone would have the same result.
            return None if _is_gone(entry) else StreamPosition(entry.turn, entry.attempt)
        parse = self._open(entry, worker)
        if _leaves_gap(entry, parse):
            return parse.stream.position
        parse.add(entry)
        return parse

    def _open(self, entry: TokenEntry, worker: str) -> TurnParse:
        """Opens the turn of a stream's first entry. Propagates errors of its family; then the turn
        is here all the same, so that it can fail."""
        context = self._contexts.decode(entry.context)
        stream = TurnStream(entry.turn, entry.attempt, context, worker, entry.expected_cached)
        try:
            return self._open_parse(stream, context.family)
        except Exception:
            self._open_parse(stream, VERBATIM.name)
            raise

    def _open_parse(self, stream: TurnStream, family: str) -> TurnParse:
        kind = TurnParse if stream.context.logprobs is None else TracedParse
        parse = kind.open(stream, self._vocabulary_of(family), self._sealer)
        self.turns[stream.turn] = parse
        return parse

    def _vocabulary_of(self, family: str) -> FamilyVocabulary:
        vocabulary = self._vocabularies.get(family)
        if vocabulary is None:
            if len(self._vocabularies) == MAX_FAMILIES:
                self._vocabularies.clear()
            vocabulary = FamilyVocabulary(self._tokens, find_family(family))
            self._vocabularies[family] = vocabulary
        return vocabulary

    def unreadable(self, entry: TokenEntry, worker: str) -> TurnParse | None:
        """Opens a turn that can only fail, for an entry with an invalid parse context. Returns None
        if its frontend cannot be read either."""
        try:
            frontend = frontend_of(entry.context)
        except msgspec.DecodeError:
            return None
        context = ParseContext(model="", family=VERBATIM.name, frontend=frontend, prompt_tokens=0)
        stream = TurnStream(entry.turn, entry.attempt, context, worker)
        return self._open_parse(stream, VERBATIM.name)

    def remove(self, parse: TurnParse) -> None:
        """Removes a turn, unless another attempt has taken its place."""
        if self.turns.get(parse.stream.turn) is parse:
            del self.turns[parse.stream.turn]

    def open_turns(self, worker: str) -> list[TurnParse]:
        """Returns the turns of a worker that have not ended."""
        return [
            parse
            for parse in self.turns.values()
            if parse.stream.worker == worker and not parse.ended
        ]

    def turns_of(self, frontend: str) -> list[TurnParse]:
        """Returns all turns of a frontend."""
        return [parse for parse in self.turns.values() if parse.stream.frontend == frontend]

    def rewind(self, request: Replay) -> list[TurnParse]:
        """Moves turns back to where the frontend that requests a replay has them. Returns them."""
        positions = {position.turn: position for position in request.streams}
        rewound: list[TurnParse] = []
        for parse in self.turns_of(request.receiver):
            stream = parse.stream
            position = positions.get(stream.turn)
            if position is not None and position.attempt <= stream.attempt:
                # rare: a frontend asks for events again
                parse.rewind(position)
                rewound.append(parse)
            elif position is None and request.all:
                parse.rewind(StreamPosition(stream.turn, stream.attempt))
                rewound.append(parse)
        return rewound

    def positions(self, worker: str) -> list[StreamPosition]:
        """Returns this shard's position in each open stream of a worker."""
        return [parse.stream.position for parse in self.open_turns(worker)]


def _leaves_gap(entry: TokenEntry, parse: TurnParse) -> bool:
    """Returns whether tokens before the entry are missing."""
    return entry.at > len(parse.stream.ids) and not _is_gone(entry)


def _is_gone(entry: TokenEntry) -> bool:
    """Returns whether the worker no longer has this stream."""
    if entry.finish is None or entry.finish.error is None:
        return False
    return entry.finish.error.code == STREAM_GONE
