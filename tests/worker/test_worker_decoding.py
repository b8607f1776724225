"""One turn between the engine and the outbox."""

from schemas.errors import EngineFailed
from schemas.events import FinishReason
from services.worker.engine import EngineDelta
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
    turn.abandon(EngineFailed("no tokens"))
    turn.put(EngineDelta([2], finish=FinishReason.STOP))
    assert (turn.stream.ids, trial.ends, trial.closed) == ([1], ["a"], 1)
    assert turn.stream.finish is not None
    assert turn.stream.finish.reason is FinishReason.CANCELLED
    other = trial.open("b")
    other.abandon(EngineFailed("no tokens"))
    assert (trial.closed, trial.ends) == (2, ["a", "b"])
    assert other.stream.finish is not None
    assert other.stream.finish.reason is FinishReason.ERROR
