"""The versions of the weights that decoded each token, from the engine's steps to the frontend."""

import random
from dataclasses import dataclass, field

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from schemas.control import StreamPosition
from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import (
    UNKNOWN_WEIGHTS,
    Finish,
    FinishReason,
    Interrupted,
    OutputTokens,
    WeightsSpan,
    corrected,
    spans_between,
)
from schemas.frames import TokenEntry, TokenFrame
from schemas.requests import ParseContext
from schemas.token_ids import pack_ids, unpack_ids
from services.parser.shard import Shard
from services.parser.turn_parse import TurnParse
from services.runtime.streams.cursor import Cursor, Verdict
from services.worker.engine import EngineDelta
from services.worker.output.token_stream import TOKEN_BYTES, TokenStream
from tests.parser.shard_turns import SEALER, STOP, VOCABULARY, ids_of

GONE = ErrorInfo(ErrorKind.ENGINE, "the worker was lost")
TEXT = ids_of("Hello there, this is a text of some tokens. " * 3)


def versions_of(spans: list[WeightsSpan], count: int) -> list[int]:
    """The version of each of `count` tokens."""
    ends = [*(span.at for span in spans[1:]), count]
    found = [0] * (spans[0].at if spans else count)
    for span, end in zip(spans, ends, strict=False):
        found += [span.version] * (end - span.at)
    return found


def test_spans_between_begin_where_they_are_asked_for() -> None:
    spans = [WeightsSpan(2, 1), WeightsSpan(5, 3)]
    assert spans_between([], 4, 9) == [WeightsSpan(4, 0)]
    assert spans_between(spans, 0, 9) == [WeightsSpan(0, 0), *spans]
    assert spans_between(spans, 2, 5) == [WeightsSpan(2, 1)]
    assert spans_between(spans, 3, 6) == [WeightsSpan(3, 1), WeightsSpan(5, 3)]
    assert spans_between(spans, 7, 9) == [WeightsSpan(7, 3)]


@dataclass
class Engine:
    """Decodes a turn in steps, by weights that change between them, and logs the version of each
    token."""

    version: int
    log: list[int] = field(default_factory=list)
    reported: int = 0
    is_late: bool = False
    """It is sure of the versions only at the end."""

    def step(self, ids: list[int], newer: int, *, ends: bool = False) -> EngineDelta:
        self.version += newer
        self.log += [self.version] * (len(ids) + ends)
        told = UNKNOWN_WEIGHTS if self.is_late else self.version
        weights = told if told != self.reported else None
        self.reported = told
        if not ends:
            return EngineDelta(ids, weights=weights)
        spans = None
        if self.is_late:
            first = 1 - len(self.log)  # the end token is at 0
            spans = [WeightsSpan(first + at, version) for at, version in enumerate(self.log)]
        return EngineDelta(
            ids, finish=FinishReason.STOP, stop_id=STOP, weights=weights, spans=spans
        )


class Turn:
    """A turn on its way over lossy channels, from workers to shards and a frontend."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.context = msgspec.Raw(
            msgspec.json.encode(
                ParseContext("m", "plain", "f", prompt_tokens=1, prompt_ids=pack_ids([1]))
            )
        )
        self.shard = Shard(VOCABULARY, SEALER)
        self.cursor = Cursor()
        self.ids: list[int] = []
        self.weights: list[WeightsSpan] = []

    def open(self, attempt: int, resume: list[int]) -> None:
        self.stream = TokenStream(
            turn="t", attempt=attempt, frontend="f", context=self.context, ids=[*resume]
        )
        self.send()

    @property
    def parse(self) -> TurnParse:
        return self.shard.turns["t"]

    def send(self, *, arrives: bool = True) -> None:
        """Sends all that the worker has to the shard, in entries of any size."""
        stream = self.stream
        while stream.pending:
            room = self.chance.randint(1, 9) * TOKEN_BYTES
            entry = stream.next_tokens(room)
            if entry is None:
                entry = stream.next_entry(1, room + len(bytes(self.context)))[0]
            if arrives:
                self.take(entry)

    def take(self, entry: TokenEntry) -> None:
        frame = msgspec.json.encode(TokenFrame("w", 1, [entry]))
        (entry,) = msgspec.json.decode(frame, type=TokenFrame).entries
        position = self.shard.parse(entry, "w")
        if isinstance(position, StreamPosition):
            self.stream.rewind(position.offset)

    def read(self, *, arrives: bool = True) -> None:
        """Sends some of what the shard has to the frontend."""
        events = self.parse.read(self.chance.randint(1, 9) * TOKEN_BYTES)[0]
        for event in events if arrives else ():
            taken = self.cursor.accept(event)
            if isinstance(taken, OutputTokens):
                assert taken.at == len(self.ids)
                self.ids += taken.ids
                self.weights += taken.weights
            elif isinstance(taken, Finish):
                self.weights = corrected(self.weights, taken.weights)
            elif taken is Verdict.GAP:
                self.parse.rewind(self.cursor.position("t", self.stream.attempt))
                return

    def disturb(self) -> None:
        """Whatever may happen to messages and shards."""
        match self.chance.randint(0, 5):
            case 0:
                self.send(arrives=False)
            case 1:
                self.stream.rewind(self.chance.randint(0, len(self.stream.ids)))
            case 2:
                self.shard = Shard(VOCABULARY, SEALER)
                self.stream.rewind(0)
            case 3:
                self.read(arrives=False)
            case _:
                self.read()
        self.send()

    def settle(self) -> None:
        """Brings the frontend all that the shard has."""
        self.stream.rewind(0)
        self.send()
        self.parse.rewind(self.cursor.position("t", self.stream.attempt))
        for _ in range(500):
            self.read()


steps = st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0, 0, 0, 1, 2])), max_size=9)


@given(
    steps,
    steps,
    st.integers(0, 2),
    st.integers(0, 4),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_each_token_has_the_version_that_the_engine_logged(
    first: list[tuple[int, int]],
    second: list[tuple[int, int]],
    version: int,
    other: int,
    is_late: bool,
    chance: random.Random,
) -> None:
    """Steps of two workers: the second one continues the turn after the death of the first, with
    weights of any version, which its engine may tell only at the end."""
    turn = Turn(chance)
    turn.open(1, [])
    engine = Engine(version)
    for count, newer in first:
        at = len(turn.stream.ids)
        turn.stream.add(engine.step(TEXT[at : at + count], newer))
        turn.disturb()
    for _ in range(chance.randint(0, 9)):
        turn.read()

    had = len(turn.ids)
    turn.parse.interrupt(GONE)
    lost = turn.parse.stream.log.terminal
    assert isinstance(lost, Interrupted)
    resume = unpack_ids(lost.token_ids)
    turn.open(2, resume)
    expected = engine.log[:had] + [UNKNOWN_WEIGHTS] * (len(resume) - had)
    engine = Engine(other, is_late=is_late)
    for count, newer in second:
        at = len(turn.stream.ids)
        turn.stream.add(engine.step(TEXT[at : at + count], newer))
        turn.disturb()
    turn.stream.add(engine.step([], chance.randint(0, 1), ends=True))
    turn.settle()

    assert turn.cursor.ended
    ids = [*TEXT[: len(turn.ids) - 1], STOP]
    assert turn.ids == ids
    assert versions_of(turn.weights, len(ids)) == expected + engine.log
    versions = [] if is_late else [span.version for span in turn.weights]
    assert all(a != b for a, b in zip([0, *versions], versions, strict=False)), "none is repeated"
