"""Records the spans of one attempt at a turn in the worker: queue, prefill and decode."""

from time import time_ns
from typing import TYPE_CHECKING

from schemas.events import FinishReason
from services.worker.engine import Delta
from services.worker.outbox import TokenStream

if TYPE_CHECKING:
    from services.runtime.observability.tracing import Scope


class StreamSpans:
    """Takes the times of one token stream, and records its spans."""

    def __init__(self, scope: "Scope", prompt_tokens: int) -> None:
        """`prompt_tokens`: with the output of an earlier attempt, which the engine computes like a
        prompt."""
        self._scope = scope
        self._prompt_tokens = prompt_tokens
        self._taken = time_ns()
        self._first = 0
        self._queued_s: float | None = None

    def first(self, delta: Delta) -> None:
        """Notes the first step that the engine reports."""
        if not self._first:
            self._first, self._queued_s = time_ns(), delta.waited_s

    def end(self, stream: TokenStream) -> None:
        """Records the spans of an ended stream, for the phases that it has reached."""
        end, finish = time_ns(), stream.finish
        attempt = {"turnwire.attempt": stream.attempt}
        error = str(finish.error.kind) if finish is not None and finish.error is not None else None
        cancelled = finish is not None and finish.reason is FinishReason.CANCELLED
        if not self._first:
            details = {**attempt, "turnwire.cancelled": cancelled or None}
            self._scope.record("queue", self._taken, end, details, error=error)
            return
        started = self._taken
        if self._queued_s is not None:
            started = min(started + round(self._queued_s * 1e9), self._first)
            self._scope.record("queue", self._taken, started, attempt)
        prefill = {
            **attempt,
            "gen_ai.usage.input_tokens": self._prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": stream.cached,
        }
        self._scope.record("prefill", started, self._first, prefill)
        decode = {
            **attempt,
            "gen_ai.usage.output_tokens": len(stream.ids) - stream.resumed,
            "turnwire.resumed_tokens": stream.resumed or None,
            "gen_ai.response.finish_reasons": [str(finish.reason)] if finish is not None else None,
        }
        self._scope.record("decode", self._first, end, decode, error=error)
