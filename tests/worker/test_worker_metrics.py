"""What a worker measures of each turn, when it ends."""

from msgspec import Raw
from prometheus_client import CollectorRegistry

from schemas.events import FinishReason
from schemas.frames import TokenFinish
from services.worker.engine import EngineDelta
from services.worker.metrics import TurnTimes, WorkerMetrics
from services.worker.observer import DecodingObserver
from services.worker.output.token_stream import TokenStream
from services.worker.stream_spans import NO_SPANS


def test_turn_is_measured_by_steps_and_a_cut_one_has_no_decode_time() -> None:
    """A turn of 100 prompt tokens, taken at 10 s, and two that are cut: one before its first
    token."""
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)

    def turn(first_at: float | None, ended_at: float, reason: FinishReason) -> None:
        stream = TokenStream(
            turn="t", attempt=1, frontend="f", context=Raw(b"{}"), ids=[], expected_cached=160
        )
        times = TurnTimes(prompt_tokens=100, opened_at=10.0)
        if first_at is not None:
            delta = EngineDelta([1], cached=48, waited_s=2.0)
            stream.add(delta)
            DecodingObserver(metrics, NO_SPANS, times).prefilled(delta)
            times.first_at = first_at
        stream.finish = TokenFinish(reason)
        metrics.ended(times, stream, ended_at)

    def of(step: str) -> tuple[float | None, float | None]:
        """Observations of a step, and their sum."""
        value, name = registry.get_sample_value, f"turnwire_request_{step}_time_seconds"
        return value(f"{name}_count"), value(f"{name}_sum")

    turn(13.0, 15.5, FinishReason.STOP)
    assert (of("queue"), of("prefill"), of("decode")) == ((1, 2.0), (1, 1.0), (1, 2.5))
    tokens = [
        registry.get_sample_value(f"turnwire_kv_{name}_tokens_total")
        for name in ("prompt", "cached", "expected")
    ]
    assert tokens == [100, 48, 100], "what an earlier attempt wrote is no part of the prompt"
    turn(None, 12.0, FinishReason.CANCELLED)
    turn(14.0, 15.0, FinishReason.ERROR)
    assert (of("prefill"), of("decode")) == ((2, 3.0), (1, 2.5))
