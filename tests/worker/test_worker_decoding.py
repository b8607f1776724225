"""One turn between the engine and the outbox."""

from schemas.errors import ENGINE_DIED, EngineFailed
from schemas.events import FinishReason
from services.worker.engine import EngineDelta, EngineDied
from services.worker.output.decoding import Decoding
from services.worker.output.outbox import Outbox
from tests.kit.fake_decodings import FakeDecodings


class Trial:
    """Turns of one outbox, and what was called for."""

    def __init__(self) -> None:
        self.outbox = Outbox("w", frame_bytes=100_000, linger_s=1.0)
        self.turns = FakeDecodings()
        self.steps, self.ends = self.turns.steps, self.turns.ends
        self.closed = 0

    def open(self, turn: str, parser: str = "p") -> Decoding:
        decoding = self.turns.open(turn=turn)
        decoding.handle = self
        self.outbox.open(decoding.stream, parser)
        return decoding

    def close(self) -> None:
        """The engine's handle."""
        self.closed += 1


def test_a_shard_is_scheduled_once_for_a_step() -> None:
    trial = Trial()
    turns = [trial.open("a"), trial.open("b"), trial.open("c", "q")]
    for turn in turns:
        turn.put(EngineDelta([1], cached=0))
    assert trial.steps == ["a", "b", "c"], "the first words of each are told of"
    assert trial.turns.prefills == [0, 0, 0]
    trial.outbox.fill("p", 1)
    trial.outbox.fill("q", 1)
    trial.steps.clear()
    for _ in range(2):
        for turn in turns:
            turn.put(EngineDelta([2]))
    assert trial.steps == ["a", "c"]
    frame = trial.outbox.fill("p", 2)
    assert frame is not None
    assert [(entry.turn, entry.at, entry.ids) for entry in frame.entries] == [
        ("a", 1, [2, 2]),
        ("b", 1, [2, 2]),
    ]


def test_log_probabilities_stay_with_their_tokens() -> None:
    turn = Trial().open("a")
    turn.put(EngineDelta([1], logprobs=[[(1, -0.5)]]))
    turn.put(EngineDelta([2]))
    turn.put(EngineDelta([3], logprobs=[[(3, -0.1)]]))
    assert turn.stream.ids == [1, 2, 3]
    assert turn.stream.logprobs == [[(1, -0.5)], [], [(3, -0.1)]]


def test_it_ends_once_by_the_engine() -> None:
    trial = Trial()
    turn = trial.open("a")
    turn.put(EngineDelta([1], finish=FinishReason.STOP, stop_id=7))
    turn.put(EngineDelta([2]))
    turn.fail(EngineFailed("late"))
    turn.cancel()
    assert (turn.stream.ids, trial.ends, trial.closed) == ([1], ["a"], 0)
    assert turn.stream.finish is not None
    assert (turn.stream.finish.reason, turn.stream.finish.stop_id) == (FinishReason.STOP, 7)


def test_cancelling_closes_the_engines_turn_once() -> None:
    trial = Trial()
    turn = trial.open("a")
    turn.put(EngineDelta([1]))
    turn.cancel()
    turn.cancel()
    turn.put(EngineDelta([2], finish=FinishReason.STOP))
    assert (turn.stream.ids, trial.ends, trial.closed) == ([1], ["a"], 1)
    assert turn.stream.finish is not None
    assert turn.stream.finish.reason is FinishReason.CANCELLED


def test_the_death_of_the_engine_has_its_own_code() -> None:
    trial = Trial()
    one, other = trial.open("a"), trial.open("b")
    one.fail(EngineDied("gone"))
    other.fail(EngineFailed("bad request"))
    codes = [
        turn.stream.finish.error.code
        for turn in (one, other)
        if turn.stream.finish and turn.stream.finish.error
    ]
    assert codes == [ENGINE_DIED, EngineFailed("").info.code]
    assert trial.ends == ["a", "b"]


def test_a_turn_that_is_abandoned_ends_with_an_error_and_its_engine_stops() -> None:
    trial = Trial()
    turn = trial.open("a")
    turn.put(EngineDelta([1], cached=0))
    for _ in range(2):
        turn.abandon(EngineFailed("no tokens"))
    turn.put(EngineDelta([2]))
    assert (trial.closed, trial.ends, turn.stream.ids) == (1, ["a"], [1])
    assert turn.stream.finish is not None
    assert turn.stream.finish.reason is FinishReason.ERROR
