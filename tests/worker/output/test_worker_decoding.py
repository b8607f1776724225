"""One turn between the engine and the outbox."""

from schemas.errors import EngineFailed
from schemas.events import FinishReason
from schemas.frames import TokenFinish
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
    assert trial.steps == ["a", "b", "c"], "each is woken for its first tokens"
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


def test_turn_ends_once_by_the_engine_or_the_caller_which_closes_the_engines() -> None:
    trial = Trial()
    stopped, cancelled, abandoned = (trial.open(turn) for turn in "abc")
    stopped.put(EngineDelta([1], finish=FinishReason.STOP, stop_id=7))
    stopped.put(EngineDelta([2]))
    stopped.fail(EngineFailed("late"))
    stopped.cancel()
    assert (stopped.stream.ids, trial.ends, trial.closed) == ([1], ["a"], 0)
    assert stopped.stream.finish == TokenFinish(FinishReason.STOP, 7)
    cancelled.put(EngineDelta([1]))
    cancelled.cancel()
    cancelled.cancel()
    cancelled.abandon(EngineFailed("no tokens"))
    cancelled.put(EngineDelta([2], finish=FinishReason.STOP))
    assert (cancelled.stream.ids, trial.ends, trial.closed) == ([1], ["a", "b"], 1)
    assert cancelled.stream.finish == TokenFinish(FinishReason.CANCELLED)
    abandoned.abandon(EngineFailed("no tokens"))
    assert (trial.closed, trial.ends) == (2, ["a", "b", "c"])
    assert abandoned.stream.finish is not None
    assert abandoned.stream.finish.reason is FinishReason.ERROR
