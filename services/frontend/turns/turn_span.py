"""Records the span of one turn in the frontend, with a child for each block and for each attempt
after the first.

Blocks are recorded here because each passes the frontend once, even if it was parsed or sent
several times.
"""

from time import time_ns
from typing import TYPE_CHECKING

from schemas.conversation import Conversation
from schemas.errors import ErrorInfo
from schemas.events import BlockStart, BlockStop, Failed, Finish, Prepared, TurnEvent

if TYPE_CHECKING:
    from services.runtime.observability.tracing import Attributes, OpenSpan, Tracer


class TurnSpan:
    """The span of one sampled turn."""

    def __init__(self, span: "OpenSpan") -> None:
        self._span = span
        self._attempt = span
        """Parent of the spans of the current attempt."""
        self._number = 1
        self._over = False
        """The current attempt has ended, and the next one has not started."""
        self._started = time_ns()
        self._reason = ""
        self._worker: str | None = None
        """The worker of the current attempt."""
        self._block: tuple[BlockStart, int] | None = None
        """The open block, and when it started."""
        self._error: str | None = None

    @classmethod
    def open(cls, tracer: "Tracer", turn: str, conversation: Conversation) -> "TurnSpan | None":
        """Starts the span of a turn. Returns None if the turn is not sampled. `conversation.model`:
        the served name."""
        parent = tracer.parent()
        if parent is None:
            return None
        sampling = conversation.sampling
        client = conversation.client
        operation = "chat" if conversation.prompt is None else "text_completion"
        attributes: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "turnwire",
            "gen_ai.request.model": conversation.model,
            "gen_ai.response.model": conversation.model,
            "gen_ai.output.type": "text" if conversation.format is None else "json",
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k,
            "gen_ai.request.seed": sampling.seed,
            "gen_ai.request.presence_penalty": sampling.presence_penalty,
            "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
            "gen_ai.conversation.id": client.session,
            "turnwire.parent": client.parent,
            "turnwire.kind": None if client.session is None else client.kind,
            "turnwire.turn": turn,
        }
        return cls(parent.open(f"{operation} {conversation.model}", time_ns(), attributes))

    def carrier(self, attempt: int) -> dict[str, str]:
        """Returns the trace context for the request of an attempt, which starts now."""
        if attempt != self._number:
            self._number = attempt
            self._over = False
            details: Attributes = {"turnwire.attempt": attempt, "turnwire.reason": self._reason}
            self._attempt = self._span.open("retry", time_ns(), details, after=self._attempt)
        return self._attempt.carrier

    def end_attempt(self, attempt: int, reason: str) -> None:
        """Records that an attempt ended without an answer."""
        at = time_ns()
        self._reason = reason
        details: Attributes = {
            "turnwire.attempt": attempt,
            "turnwire.reason": reason,
            "turnwire.worker": self._worker,
        }
        self._worker = None
        self._span.event("turnwire.attempt_ended", at, details)
        if self._attempt is not self._span and not self._over:
            self._attempt.end(at, error=reason)
        self._over = True

    def record_prepared(self, prepared: Prepared) -> None:
        """Records which processes have the turn."""
        self._worker = prepared.worker
        self._span.set({"turnwire.worker": prepared.worker, "turnwire.parser": prepared.parser})

    def take(self, events: list[TurnEvent]) -> None:
        """Records the first token, blocks and the outcome from new events."""
        at = time_ns()
        if self._started:
            self._span.set({"gen_ai.response.time_to_first_chunk": (at - self._started) / 1e9})
            self._started = 0
        for event in events:
            if isinstance(event, BlockStart):
                self._block = event, at
            elif isinstance(event, BlockStop):
                self._end_block(at, complete=event.complete, characters=event.length)
            elif isinstance(event, Finish):
                self._record_finish(event)
            elif isinstance(event, Failed):
                self._error = str(event.error.kind)

    def end(self, refusal: ErrorInfo | None, cancelled: str | None) -> None:
        """Ends the spans. `cancelled`: why the frontend cancelled the turn."""
        at = time_ns()
        error = self._error
        if refusal is not None:
            error = str(refusal.kind)
        self._end_block(at, complete=False, characters=None)
        if self._attempt is not self._span and not self._over:
            self._attempt.end(at, error=error)
        self._span.set({"turnwire.cancelled": cancelled})
        self._span.end(at, error=error)

    def _record_finish(self, finish: Finish) -> None:
        usage = finish.usage
        self._span.set(
            {
                "gen_ai.response.finish_reasons": [str(finish.reason)],
                "gen_ai.usage.input_tokens": usage.prompt,
                "gen_ai.usage.cache_read.input_tokens": usage.cached,
                "gen_ai.usage.output_tokens": usage.output,
                "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
            }
        )

    def _end_block(self, at: int, *, complete: bool, characters: int | None) -> None:
        """Records the open block, if there is one."""
        if self._block is None:
            return
        start, started = self._block
        self._block = None
        attributes: dict[str, str | int | None] = {
            "turnwire.block": start.block,
            "turnwire.complete": complete,
            "turnwire.characters": characters,
        }
        if start.kind == "tool_use":
            attributes["gen_ai.tool.name"] = start.name
            attributes["gen_ai.tool.call.id"] = start.call_id
            attributes["gen_ai.tool.type"] = "function"
        self._span.record(start.kind, started, at, attributes)
