"""Measures the worker's part of each turn: waiting, prefill, decoding, and what the KV cache saved."""

from prometheus_client import CollectorRegistry, Counter

from schemas.events import FinishReason
from services.runtime.observability.metrics import step_histogram
from services.worker.outbox import TokenStream


class WorkerMetrics:
    """The metrics of one worker. No method is called per token."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"turnwire_kv_{name}_tokens", text, registry=registry)

        self._queue = step_histogram(
            "queue", "A turn's wait for a slot, where the engine reports it.", registry
        )
        text = "From a slot to the first token; from the turn's arrival, where the engine does not report its wait."
        self._prefill = step_histogram("prefill", text, registry)
        self._decode = step_histogram(
            "decode", "From the first token of a turn to its end.", registry
        )
        self._prompt = counter(
            "prompt", "Prompt tokens of turns whose engine reported what it had in its KV cache."
        )
        self._expected = counter("expected", "Those of them that the worker expected in the cache.")
        self._cached = counter("cached", "Those of them that the engine found there.")

    def ended(self, stream: TokenStream, now: float) -> None:
        """Records an ended turn. `now`: on the clock of `opened_at` and `first_at`."""
        if not stream.first_at:
            return  # refused, or cancelled before its first token
        waited = stream.waited_s or 0.0
        if stream.waited_s is not None:
            self._queue.observe(waited)
        self._prefill.observe(max(0.0, stream.first_at - stream.opened_at - waited))
        if stream.finish is not None and stream.finish.reason not in (
            FinishReason.ERROR,
            FinishReason.CANCELLED,
        ):
            self._decode.observe(now - stream.first_at)
        if stream.cached is not None:
            prompt = stream.prompt_tokens
            self._prompt.inc(prompt)
            self._expected.inc(min(stream.held, prompt))
            # An engine may have found tokens of an earlier attempt, too.
            self._cached.inc(min(stream.cached, prompt))
