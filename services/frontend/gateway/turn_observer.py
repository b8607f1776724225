"""Reports what happens to one turn in the log."""

from schemas.errors import ErrorInfo, TurnwireError
from schemas.events import Interrupted, Prepared, TurnEvent
from services.frontend.turns.interfaces import CancelReason
from services.runtime.observability.telemetry import FilteringBoundLogger


class BusTurnObserver:
    """Logs what happens to a turn. `TracedTurn` also records it."""

    def __init__(self, log: FilteringBoundLogger, turn: str) -> None:
        self._log = log
        self._turn = turn

    def trace_of(self, _attempt: int) -> dict[str, str]:
        """Returns the trace context for the request of an attempt, which starts now."""
        return {}

    def moved(self, model: str) -> None:
        """The turn moved to another model with the same alias, while it waited."""

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
