"""Reports what happens to one turn in the log, and in its span, with a child for each block and for
each attempt after the first.

Blocks are recorded here because each passes the frontend once, even if it was parsed or sent
several times.
"""

from time import time_ns

from schemas.conversation import Conversation
from schemas.errors import ErrorInfo, TurnwireError
from schemas.events import (
    BlockStart,
    BlockStop,
    Failed,
    Finish,
    Interrupted,
    Prepared,
    TurnEvent,
)
from services.frontend.turns.interfaces import CancelReason
from services.runtime.observability.scope import NO_SCOPE, Attributes, Scope
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.runtime.process import Process


class BusTurnObserver:
    """Logs what happens to a turn, and records it in the turn's span."""

    def __init__(self, log: FilteringBoundLogger, turn: str, span: Scope = NO_SCOPE) -> None:
        self._log = log
        self._turn = turn
        self._span = span
        self._attempt = span
        """Parent of the spans of the current attempt."""
        self._number = 1
        self._attempt_has_ended = False
        """The current attempt has ended, and the next one has not started."""
        self._started = time_ns()
        self._reason = ""
        self._worker: str | None = None
        """The worker of the current attempt."""
        self._block: tuple[BlockStart, int] | None = None
        """The open block, and when it started."""
        self._error: str | None = None

    def trace_of(self, attempt: int) -> dict[str, str]:
        """Returns the trace context for the request of an attempt, which starts now."""
        if attempt != self._number:
            self._number = attempt
            self._attempt_has_ended = False
            details: Attributes = {"turnwire.attempt": attempt, "turnwire.reason": self._reason}
            self._attempt = self._span.open("retry", time_ns(), details, after=self._attempt)
        return self._attempt.carrier

    def superseded(self, attempt: int, reason: str) -> None:
        """An attempt ended without an answer."""
        at = time_ns()
        self._reason = reason
        details: Attributes = {
            "turnwire.attempt": attempt,
            "turnwire.reason": reason,
            "turnwire.worker": self._worker,
        }
        self._worker = None
        self._span.event("turnwire.attempt_ended", at, details)
        self._end_attempt(at, reason)
        self._attempt_has_ended = True

    def moved(self, model: str) -> None:
        """The turn moved to another model with the same alias, while it waited."""
        self._span.set({"gen_ai.response.model": model})

    def prepared(self, prepared: Prepared) -> None:
        """A worker and a parser have the turn."""
        self._worker = prepared.worker
        if self._span is not NO_SCOPE:
            self._span.set({"turnwire.worker": prepared.worker, "turnwire.parser": prepared.parser})

    def events(self, events: list[TurnEvent]) -> None:
        """The client gets events: the first token, blocks or the outcome may be among them. Not
        called for the next delta of a block alone."""
        if self._span is NO_SCOPE:
            return
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

    def attempt_failed(self, preprocessor: str, error: TurnwireError) -> None:
        """A preprocessor refused an attempt, or did not answer."""
        self._log.warning(
            "frontend.attempt_failed",
            turn=self._turn,
            preprocessor=preprocessor,
            error=str(error),
        )

    def interrupted(self, lost: Interrupted) -> None:
        """The worker was lost in mid-turn, or wrote a broken call."""
        call = lost.broken_call
        if call is None:
            self._log.warning(
                "frontend.interrupted", turn=self._turn, worker=lost.worker, tokens=lost.token_count
            )
        else:
            self._log.info(
                "frontend.broken_call",
                turn=self._turn,
                cause=call.cause,
                tokens=lost.token_count,
                discarded=call.tokens,
            )
            self._span.set({"turnwire.broken_call": call.cause})

    def resume_failed(self, error: TurnwireError) -> None:
        """No process continued the turn."""
        self._log.warning("frontend.resume_failed", turn=self._turn, error=str(error))

    def failed(self) -> None:
        """This frontend failed with the exception that is being handled."""
        self._log.exception("frontend.turn_failed", turn=self._turn)

    def unexpected_event(self, turn: str, event: str) -> None:
        """An event came that the turn's state does not expect. It changes nothing."""
        self._log.error("frontend.unexpected_event", turn=turn, event_name=event)

    def cancelled(self, reason: CancelReason) -> None:
        """This frontend cancelled the turn in all processes."""
        self._log.info("frontend.cancelled", turn=self._turn, reason=reason)

    def ended(self, error: ErrorInfo | None, cancelled: CancelReason | None) -> None:
        """The turn ended. `error`: why it failed, if it did."""
        if self._span is NO_SCOPE:
            return
        at = time_ns()
        kind = self._error
        if error is not None:
            kind = str(error.kind)
        self._end_block(at, complete=False, characters=None)
        self._end_attempt(at, kind)
        self._span.set({"turnwire.cancelled": cancelled})
        self._span.end(at, error=kind)

    def _end_attempt(self, at: int, error: str | None) -> None:
        """Ends the span of the current attempt, if it has one of its own."""
        if self._attempt is not self._span and not self._attempt_has_ended:
            self._attempt.end(at, error=error)

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


def observe_turn(process: Process, turn: str, conversation: Conversation) -> BusTurnObserver:
    """Makes the observer of a turn that begins. `conversation.model`: the served name."""
    parent = None if process.tracer is None else process.tracer.parent()
    if parent is None:
        return BusTurnObserver(process.log, turn)
    name, attributes = _describe(turn, conversation)
    return BusTurnObserver(process.log, turn, parent.open(name, time_ns(), attributes))


def _describe(turn: str, conversation: Conversation) -> tuple[str, Attributes]:
    """Returns the name and the first attributes of a turn's span."""
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
    return f"{operation} {conversation.model}", attributes
