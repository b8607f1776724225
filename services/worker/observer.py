"""Records what happens to the turns of a worker, in spans, metrics and log lines."""

from time import perf_counter, time_ns

from prometheus_client import Histogram

from schemas.errors import TurnwireError, as_turnwire_error
from schemas.events import FinishReason
from services.runtime.observability.scope import Scope
from services.runtime.process import Process
from services.worker.engine import EngineDelta, EngineInfo
from services.worker.metrics import TurnTimes, WorkerMetrics
from services.worker.output.token_stream import TokenStream


class DecodingObserver:
    """Records one attempt at a turn, from its arrival on. No method is called per token."""

    def __init__(self, metrics: WorkerMetrics, scope: Scope, times: TurnTimes) -> None:
        self._metrics = metrics
        self._scope = scope
        self._times = times

    def prefilled(self, delta: EngineDelta) -> None:
        """Records the engine's first step, which has `cached`: the prefill ended in it."""
        self._times.waited_s = delta.waited_s
        self._times.first_step()

    def first_tokens(self) -> None:
        """Records that the engine's first tokens are there. Later calls do nothing."""
        if not self._times.first_at:
            self._times.first_at = perf_counter()
            self._times.first_step()

    @property
    def has_tokens(self) -> bool:
        """Whether the engine's first tokens are there."""
        return bool(self._times.first_at)

    def ended(self, stream: TokenStream) -> None:
        """Records the end."""
        self._metrics.ended(self._times, stream, perf_counter())
        record_spans(self._scope, self._times, stream)


def record_spans(scope: Scope, times: TurnTimes, stream: TokenStream) -> None:
    """Records the spans of a stream that ends now, for the phases that it has reached: queue,
    prefill and decode."""
    end = time_ns()
    finish = stream.finish
    assert finish is not None, "the stream has not ended"
    error = str(finish.error.kind) if finish.error else None

    arrived = times.opened_ns
    first = times.first_step_ns
    attempt = {"turnwire.attempt": stream.attempt}
    if not first:
        cancelled = finish.reason is FinishReason.CANCELLED
        details = {**attempt, "turnwire.cancelled": cancelled or None}
        scope.record("queue", arrived, end, details, error=error)
        return

    started = arrived
    if times.waited_s is not None:
        started = min(arrived + round(times.waited_s * 1e9), first)
        scope.record("queue", arrived, started, attempt)
    prefill = {
        **attempt,
        "gen_ai.usage.input_tokens": times.computed_tokens,
        "gen_ai.usage.cache_read.input_tokens": stream.cached,
    }
    scope.record("prefill", started, first, prefill)
    decode = {
        **attempt,
        "gen_ai.usage.output_tokens": len(stream.output),
        "turnwire.resumed_tokens": stream.resumed or None,
        "gen_ai.response.finish_reasons": [str(finish.reason)],
    }
    scope.record("decode", first, end, decode, error=error)


class WorkerObserver:
    """Records what happens to all turns of one worker."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._log = process.log
        self._abort_seconds = Histogram(
            "turnwire_cancel_to_abort_seconds",
            "From a cancellation's arrival at the worker until the engine has let the turn go.",
            registry=process.metrics,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
        )
        self._metrics = WorkerMetrics(process.metrics)

    def adapters_changed(self, adapters: list[str]) -> None:
        """Records that the engine has other LoRA adapters than before."""
        self._log.info("worker.adapters", adapters=adapters)

    def open(
        self, prompt_tokens: int, computed_tokens: int, trace: dict[str, str]
    ) -> DecodingObserver:
        """Begins with a turn that has just arrived.

        `computed_tokens`: the prompt's with the output of an earlier attempt, which the engine
        computes like a prompt; `trace`: that of the request.
        """
        times = TurnTimes(prompt_tokens, computed_tokens)
        return DecodingObserver(self._metrics, self._process.scope(trace), times)

    def window_reduced(self, info: EngineInfo) -> None:
        """Logs that the KV cache holds less than the context window."""
        self._log.warning(
            "worker.window_reduced",
            max_model_len=info.max_model_len,
            full_len=info.full_len,
            kv_tokens=info.kv_tokens,
            reason=info.limit,
        )

    def failure(self, turn: str, error: Exception, what: str) -> TurnwireError:
        """Returns the error of a turn that an exception ends, as `as_turnwire_error`, and logs one
        that is not meant for the client."""
        if not isinstance(error, TurnwireError):
            self._log.error("worker.request_failed", turn=turn, exc_info=error)
        return as_turnwire_error(error, what)

    def grammar_refused(self, turn: str, error: TurnwireError) -> None:
        """Logs that a turn runs without the grammar of the operator's rule for calls."""
        self._log.warning("worker.grammar_refused", turn=turn, error=str(error))

    def prefill_failed(self, turn: str, error: TurnwireError) -> None:
        """Logs the error of a prefill without a turn."""
        self._log.info("worker.prefill_failed", turn=turn, error=str(error))

    def deadline_passed(self, stream: TokenStream) -> None:
        """Logs that a turn has not started in time."""
        self._log.info("worker.deadline_passed", turn=stream.turn)

    def unsendable(self, stream: TokenStream) -> None:
        """Logs that the engine has returned something that cannot be encoded."""
        self._log.error("worker.tokens_unsendable", turn=stream.turn, at=len(stream.ids))

    def cancelled(self, stream: TokenStream, reason: str, abort_s: float) -> None:
        """Records a cancelled turn. `abort_s`: how long the engine took to let it go."""
        self._abort_seconds.observe(abort_s)
        self._log.info("worker.cancelled", turn=stream.turn, reason=reason, tokens=len(stream.ids))

    def frontend_gone(self, stream: TokenStream) -> None:
        """Logs that a turn is cancelled because its frontend is gone."""
        self._log.info("worker.cancelled", turn=stream.turn, reason="frontend_gone")
