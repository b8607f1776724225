"""What a worker measures of each turn, when it ends."""

import pytest
from msgspec import Raw
from prometheus_client import CollectorRegistry

from schemas.events import FinishReason
from schemas.frames import TokenFinish
from services.worker.engine import EngineDelta
from services.worker.metrics import TurnTimes, WorkerMetrics
from services.worker.observer import DecodingObserver
from services.worker.output.token_stream import TokenStream
from services.worker.stream_spans import NO_SPANS


class Measured:
    """One turn of 100 prompt tokens, taken at 10 s."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = WorkerMetrics(self.registry)
        self.stream = TokenStream(
            turn="t", attempt=1, frontend="f", context=Raw(b"{}"), ids=[], expected_cached=160
        )
        self.times = TurnTimes(prompt_tokens=100, opened_at=10.0)
        self.observer = DecodingObserver(self.metrics, NO_SPANS, self.times)

    def put(self, delta: EngineDelta) -> None:
        self.stream.add(delta)
        if delta.cached is not None:
            self.observer.prefilled(delta)

    def ends(self, at: float, reason: FinishReason = FinishReason.STOP) -> None:
        self.stream.finish = TokenFinish(reason)
        self.metrics.ended(self.times, self.stream, at)

    def step(self, name: str) -> tuple[float | None, float | None]:
        """Observations of a step, and their sum."""
        value, name = self.registry.get_sample_value, f"turnwire_request_{name}_time_seconds"
        return value(f"{name}_count"), value(f"{name}_sum")

    def tokens(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"turnwire_kv_{name}_tokens_total")


def test_the_wait_is_not_part_of_the_prefill() -> None:
    turn = Measured()
    turn.put(EngineDelta([1], cached=48, waited_s=2.0))
    turn.times.first_at = 13.0
    turn.ends(15.5)
    assert turn.step("queue") == (1, 2.0)
    assert turn.step("prefill") == (1, 1.0)
    assert turn.step("decode") == (1, 2.5)
    assert (turn.tokens("prompt"), turn.tokens("cached")) == (100, 48)
    assert turn.tokens("expected") == 100, "what an earlier attempt wrote is no part of the prompt"


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.ERROR])
def test_a_turn_that_is_cut_off_has_no_decode_time(reason: FinishReason) -> None:
    turn = Measured()
    turn.ends(12.0, reason)
    assert turn.step("prefill") == (0, 0), "nor a prefill time, without a token"
    turn.times.first_at = 13.0
    turn.ends(14.0, reason)
    assert turn.step("prefill") == (1, 3.0)
    assert turn.step("decode") == (0, 0)
