"""Measures the worker's part of each turn: waiting, prefill, decoding, and what the KV cache
saved."""

from dataclasses import dataclass, field
from time import perf_counter, time_ns

from prometheus_client import CollectorRegistry, Counter

from services.runtime.observability.metrics import step_histogram
from services.worker.output.token_stream import TokenStream


@dataclass(slots=True)
class TurnTimes:
    """When the steps of a turn happened: in seconds on one clock for metrics, in nanoseconds of
    Unix time for spans."""

    prompt_tokens: int
    """The prompt's tokens, without output of an earlier attempt."""
    computed_tokens: int
    """The prompt's tokens with that output, which the engine computes like a prompt."""
    opened_at: float = field(default_factory=perf_counter)
    opened_ns: int = field(default_factory=time_ns)
    first_at: float = 0.0
    """When the engine's first tokens came; 0: not yet."""
    first_step_ns: int = 0
    """When the engine reported its first step, with tokens or with what it had in its cache."""
    waited_s: float | None = None
    """How long the turn waited for a slot; None: the engine does not report it."""

    def first_step(self) -> None:
        """Notes the engine's first step. Later calls do nothing."""
        self.first_step_ns = self.first_step_ns or time_ns()


class WorkerMetrics:
    """The metrics of one worker. No method is called per token."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._queue = step_histogram(
            "queue", "A turn's wait for a slot, where the engine reports it.", registry
        )
        self._prefill = step_histogram(
            "prefill",
            "From a slot to the first token; from the turn's arrival, "
            "where the engine does not report its wait.",
            registry,
        )
        self._decode = step_histogram(
            "decode", "From the first token of a turn to its end.", registry
        )
        self._prompt = Counter(
            "turnwire_kv_prompt_tokens",
            "Prompt tokens of turns whose engine reported what it had in its KV cache.",
            registry=registry,
        )
        self._expected = Counter(
            "turnwire_kv_expected_tokens",
            "Prompt tokens that the worker expected in the engine's KV cache.",
            registry=registry,
        )
        self._cached = Counter(
            "turnwire_kv_cached_tokens",
            "Prompt tokens that the engine found in its KV cache.",
            registry=registry,
        )
        self._missed = Counter(
            "turnwire_kv_missed_tokens",
            "Expected prompt tokens that the engine did not find in its KV cache.",
            registry=registry,
        )

    def ended(self, times: TurnTimes, stream: TokenStream, now: float) -> None:
        """Records an ended turn. `now`: on the clock of `times`."""
        if not times.first_at:
            return  # refused, or cancelled before its first token

        waited_s = times.waited_s or 0.0
        if times.waited_s is not None:
            self._queue.observe(waited_s)
        self._prefill.observe(max(0.0, times.first_at - times.opened_at - waited_s))
        if not stream.broken_off:
            self._decode.observe(now - times.first_at)

        if stream.cached is not None:
            expected = min(stream.expected_cached, times.prompt_tokens)
            # An engine may have found tokens of an earlier attempt, too.
            cached = min(stream.cached, times.prompt_tokens)
            self._prompt.inc(times.prompt_tokens)
            self._expected.inc(expected)
            self._cached.inc(cached)
            self._missed.inc(max(expected - cached, 0))
