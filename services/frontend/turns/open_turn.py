"""The state of one open turn in the gateway."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from schemas.control import ModelCard, StreamPosition
from schemas.conversation import Conversation
from schemas.events import Prepared
from schemas.frames import TurnRequest
from services.frontend.turns.interfaces import CancelReason, TurnSink
from services.frontend.turns.turn_span import TurnSpan
from services.runtime.streams.turn_log import Cursor

NOT_PREPARED = Prepared(0, 0)


@dataclass(slots=True, eq=False)
class BusTurn:
    """One open turn (an `OpenTurn`)."""

    id: str
    card: ModelCard
    conversation: Conversation
    sink: TurnSink
    deadline: float
    """The loop's time."""
    on_cancel: "Callable[[BusTurn, CancelReason], None]"
    prepared: Prepared = NOT_PREPARED
    attempt: int = 1
    opened: bool = False
    """The sink has got `Prepared`."""
    failures: int = 0
    """Processes that died with this turn without getting it further."""
    wait_until: float = 0.0
    """The loop's time up to which the turn waits for processes that can take it."""
    waited_s: float = 0.0
    """Time since the processes of the current attempt were lost, without times in which this process was cut off."""
    parser_gone: str = ""
    """A parser of which it is certain that it is dead."""
    resume: bytes = b""
    """Output tokens of earlier attempts."""
    avoid: list[str] = field(default_factory=list)
    """Workers that failed this turn."""
    preprocessor: str = ""
    parser: str = ""
    worker: str = ""
    cursor: Cursor = field(default_factory=Cursor)
    streaming: bool = False
    """The current attempt is prepared: its events count."""
    outcome: asyncio.Future[Prepared] | None = None
    """Of the attempt that is being prepared."""
    resuming: asyncio.Task[None] | None = None
    """Starts the next attempt after an interruption."""
    span: TurnSpan | None = None
    """Where the turn is traced."""

    def cancel(self, reason: CancelReason) -> None:
        """See `OpenTurn.cancel`."""
        self.on_cancel(self, reason)

    def position(self) -> StreamPosition:
        """Returns the position behind the events that the sink has."""
        return self.cursor.standing(self.id, self.attempt)

    def fail_attempt(self, error: Exception) -> bool:
        """Ends the preparation of the current attempt, if it has not ended. Returns whether it did."""
        if self.outcome is None or self.outcome.done():
            return False
        self.outcome.set_exception(error)
        return True

    def request(self, frontend: str) -> TurnRequest:
        """Returns the request of the current attempt, which is to be sent now."""
        return TurnRequest(
            turn=self.id,
            frontend=frontend,
            conversation=self.conversation,
            attempt=self.attempt,
            timeout_s=self.deadline - asyncio.get_running_loop().time(),
            resume=self.resume,
            avoid=self.avoid,
            trace=self.span.carrier(self.attempt) if self.span is not None else {},
        )
