"""Reports what happens to one turn: in the log, and if the turn is traced, in its span."""

from typing_extensions import override

from schemas.conversation import Conversation
from schemas.errors import ErrorInfo, TurnwireError
from schemas.events import Interrupted, Prepared, TurnEvent
from services.frontend.turns.interfaces import CancelReason
from services.frontend.turns.turn_span import TurnSpan
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.runtime.process import Process


class BusTurnObserver:
    """Logs what happens to a turn that is not traced."""

    def __init__(self, log: FilteringBoundLogger, turn: str) -> None:
        self._log = log
        self._turn = turn

    def trace_of(self, _attempt: int) -> dict[str, str]:
        """Returns the trace context for the request of an attempt, which starts now."""
        return {}

    def prepared(self, prepared: Prepared) -> None:
        """A worker and a parser have the turn."""

    def events(self, events: list[TurnEvent]) -> None:
        """The client gets events. Not called for the next delta of a block alone."""

    def superseded(self, attempt: int, reason: str) -> None:
        """An attempt ended without an answer."""

    def attempt_failed(self, preprocessor: str, error: TurnwireError) -> None:
        """A preprocessor refused an attempt, or did not answer."""
        self._log.warning(
            "frontend.attempt_failed",
            turn=self._turn,
            preprocessor=preprocessor,
            error=str(error),
        )

    def interrupted(self, lost: Interrupted) -> None:
        """The worker was lost in mid-turn."""
        tokens = len(lost.token_ids) // 4
        self._log.warning(
            "frontend.interrupted", turn=self._turn, worker=lost.worker, tokens=tokens
        )

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
        """The turn ended. `error`: why it did not begin."""


class TracedTurn(BusTurnObserver):
    """Logs what happens to a turn, and records it in the turn's span."""

    def __init__(self, log: FilteringBoundLogger, turn: str, span: TurnSpan) -> None:
        super().__init__(log, turn)
        self._span = span

    @override
    def trace_of(self, attempt: int) -> dict[str, str]:
        return self._span.carrier(attempt)

    @override
    def prepared(self, prepared: Prepared) -> None:
        self._span.record_prepared(prepared)

    @override
    def events(self, events: list[TurnEvent]) -> None:
        self._span.take(events)

    @override
    def superseded(self, attempt: int, reason: str) -> None:
        self._span.end_attempt(attempt, reason)

    @override
    def ended(self, error: ErrorInfo | None, cancelled: CancelReason | None) -> None:
        self._span.end(error, cancelled)


def observe_turn(process: Process, turn: str, conversation: Conversation) -> BusTurnObserver:
    """Makes the observer of a turn that begins. `conversation.model`: the served name."""
    if process.tracer is not None:
        span = TurnSpan.open(process.tracer, turn, conversation)
        if span is not None:
            return TracedTurn(process.log, turn, span)
    return BusTurnObserver(process.log, turn)
