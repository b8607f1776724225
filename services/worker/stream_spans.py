"""Records the spans of one attempt at a turn in the worker: queue, prefill and decode."""

from time import time_ns
from typing import TYPE_CHECKING, TypeAlias

from schemas.events import FinishReason
from services.worker.engine import EngineDelta
from services.worker.output.token_stream import TokenStream

if TYPE_CHECKING:
    from services.runtime.observability.tracing import Scope


class StreamSpans:
    """Takes the times of one token stream, and records its spans."""

    def __init__(self, scope: "Scope", prompt_tokens: int) -> None:
        """`prompt_tokens`: with the output of an earlier attempt, which the engine computes like a
        prompt."""
        self._scope = scope
        self._prompt_tokens = prompt_tokens
        self._arrived = time_ns()
        self._first = 0
        self._queued_s: float | None = None

    def first(self, delta: EngineDelta) -> None:
        """Notes the first step that the engine reports."""
        if not self._first:
            self._first = time_ns()
            self._queued_s = delta.waited_s

    def first_tokens(self) -> None:
        """Notes the first tokens. An engine may report what it had in its cache later."""
        if not self._first:
            self._first = time_ns()

    def end(self, stream: TokenStream) -> None:
        """Records the spans of an ended stream, for the phases that it has reached."""
        end = time_ns()
        finish = stream.finish
        assert finish is not None, "the stream has not ended"
        error = str(finish.error.kind) if finish.error else None

        attempt = {"turnwire.attempt": stream.attempt}
        if not self._first:
            cancelled = finish.reason is FinishReason.CANCELLED
            details = {**attempt, "turnwire.cancelled": cancelled or None}
            self._scope.record("queue", self._arrived, end, details, error=error)
            return

        started = self._arrived
        if self._queued_s is not None:
            started = min(started + round(self._queued_s * 1e9), self._first)
            self._scope.record("queue", self._arrived, started, attempt)
        prefill = {
            **attempt,
            "gen_ai.usage.input_tokens": self._prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": stream.cached,
        }
        self._scope.record("prefill", started, self._first, prefill)
        decode = {
            **attempt,
            "gen_ai.usage.output_tokens": len(stream.output),
            "turnwire.resumed_tokens": stream.resumed or None,
            "gen_ai.response.finish_reasons": [str(finish.reason)],
        }
        self._scope.record("decode", self._first, end, decode, error=error)


class NoSpans:
    """Takes the place of `StreamSpans` for a turn that is not traced."""

    def first(self, delta: EngineDelta) -> None:
        """Does nothing."""

    def first_tokens(self) -> None:
        """Does nothing."""

    def end(self, stream: TokenStream) -> None:
        """Does nothing."""


NO_SPANS = NoSpans()
Spans: TypeAlias = StreamSpans | NoSpans
