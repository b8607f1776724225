"""Defines the states of a turn in the frontend, and a table of the events that change them.

One turn may take several attempts. An attempt is one request to a preprocessor, with the worker and
the parser that get it. The gateway calls `BusTurn.take` for each event, and acts on events that the
table has.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from typing_extensions import override

from schemas.control import ModelCard, PromptSeen, StreamPosition
from schemas.conversation import Conversation
from schemas.errors import ErrorInfo
from schemas.events import Prepared
from schemas.frames import TurnRequest
from services.frontend.media.image_reader import RequestImages
from services.frontend.turns.interfaces import CancelReason, OpenTurn, TurnSink
from services.frontend.turns.turn_span import TurnSpan
from services.runtime.streams.turn_log import Cursor


class State(Enum):
    """Where a turn is."""

    WAITING = "for stages that take work"
    PREPARING = "a preprocessor has the request"
    STREAMING = "a worker and a parser have the turn, and its events go to the client"
    RESUMING = "an attempt after the first stream is waiting or being prepared"
    ENDED = "the client has the end, or an error, or is gone"


class Event(Enum):
    """What happens to a turn."""

    REQUESTED = "the request of an attempt is sent to a preprocessor"
    PREPARED = "a parser has the stream of the attempt"
    REFUSED = "no preprocessor or worker accepted the attempt"
    TIMED_OUT = "the prompt was not ready in time"
    PROCESS_LEFT = "a process that may have the attempt was lost"
    RECONNECTED = "the connection to the bus was lost, with what was on its way"
    INTERRUPTED = "the worker was lost; its parser hands back the tokens"
    TOKENS_LOST = "no process has the tokens of the turn"
    NO_SUCCESSOR = "no process took over in time"
    FINISHED = "the last event of the turn"
    GIVEN_UP = "the turn cannot be started or continued"
    CANCELLED = "the client hung up, reads too slowly, or the time of its request is over"


_OVER = {Event.GIVEN_UP: State.ENDED, Event.CANCELLED: State.ENDED}
_ATTEMPT_FAILS = (Event.REFUSED, Event.TIMED_OUT, Event.PROCESS_LEFT, Event.RECONNECTED)

TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.WAITING: {Event.REQUESTED: State.PREPARING, **_OVER},
    State.PREPARING: {
        Event.PREPARED: State.STREAMING,
        **dict.fromkeys(_ATTEMPT_FAILS, State.WAITING),
        **_OVER,
    },
    State.STREAMING: {
        Event.INTERRUPTED: State.RESUMING,
        Event.TOKENS_LOST: State.RESUMING,
        Event.NO_SUCCESSOR: State.ENDED,
        Event.FINISHED: State.ENDED,
        **_OVER,
    },
    State.RESUMING: {
        Event.REQUESTED: State.RESUMING,
        Event.PREPARED: State.STREAMING,
        **dict.fromkeys(_ATTEMPT_FAILS, State.RESUMING),
        **_OVER,
    },
    State.ENDED: {},
}
"""Events of each state, and the states that follow them. Other events change nothing.

A streaming turn ignores a lost process and a new connection: the links send lost frames again, and
`ProcessWatch` reports turns that no process can continue."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of a turn."""

    number: int = 1
    preprocessor: str = ""
    worker: str = ""
    parser: str = ""
    outcome: asyncio.Future[Prepared] | None = None
    """Set when the attempt is requested."""
    lost_s: float = 0.0
    """Seconds since a process of the attempt was lost, without the time in which this process was
    cut off."""
    dead_parser: str = ""
    """A parser that is known to be dead, not only suspended."""

    @property
    def is_pending(self) -> bool:
        """Whether the attempt is requested, but neither prepared nor failed."""
        return self.outcome is not None and not self.outcome.done()

    def fail(self, error: Exception) -> None:
        """Fails the attempt, if it is pending."""
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_exception(error)


NOT_PREPARED = Prepared(0, 0)


@dataclass(slots=True, eq=False)
class BusTurn(OpenTurn):
    """One open turn of the gateway."""

    id: str
    card: ModelCard
    conversation: Conversation
    sink: TurnSink
    deadline: float
    """The event loop's time at which the request times out."""
    on_cancel: "Callable[[BusTurn, CancelReason], None]"
    wait_until: float
    """The event loop's time up to which the turn waits for processes that can take it."""
    images: RequestImages | None = None
    """Set while the first stream is not prepared, and the images can be stored again."""
    span: TurnSpan | None = None
    """Set if the turn is traced."""
    compared: PromptSeen | None = None
    """The origin of the prompt that this turn's is compared with."""
    prepared: Prepared = NOT_PREPARED
    """From the first attempt that was prepared."""
    state: State = State.WAITING
    attempt: Attempt = field(default_factory=Attempt)
    failures: int = 0
    """Attempts that were lost or timed out since the turn last made progress."""
    held_s: float = 0.0
    """Seconds from the requests of earlier attempts until a worker had them, or they failed."""
    resume: bytes = b""
    """Output tokens of earlier attempts."""
    avoid: list[str] = field(default_factory=list)
    """Workers that failed this turn."""
    cursor: Cursor = field(default_factory=Cursor)
    waiting: asyncio.Timeout | None = None
    """Set while the next attempt waits for processes. It has no time limit, but is set to one to
    end the wait."""
    error: ErrorInfo | None = None
    """Set if the turn was abandoned with an error."""
    resuming: asyncio.Task[None] | None = None
    """Makes the next attempt after an interruption."""

    def take(self, event: Event) -> bool:
        """Changes the state according to `TRANSITIONS`. Returns False if the event changes nothing."""
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            return False
        self.state = following
        return True

    def take_failure(self, attempt: Attempt, event: Event, error: Exception) -> bool:
        """Fails an attempt, if it is the current one and pending. Returns whether it was."""
        if attempt is not self.attempt or not attempt.is_pending or not self.take(event):
            return False
        attempt.fail(error)
        return True

    def take_prepared(self, prepared: Prepared) -> None:
        """Applies `PREPARED`. A streaming turn may get it again, from another parser of the same
        attempt."""
        attempt, is_first = self.attempt, self.state is State.PREPARING
        outcome = attempt.outcome if attempt.is_pending and self.take(Event.PREPARED) else None
        if self.state is not State.STREAMING:
            return
        attempt.worker, attempt.parser = prepared.worker, prepared.parser
        if outcome is not None:
            outcome.set_result(prepared)
            if is_first:
                self.sink.opened(prepared)

    @override
    def cancel(self, reason: CancelReason) -> None:
        self.on_cancel(self, reason)

    def position(self) -> StreamPosition:
        """Returns the position after the events that the sink has received."""
        return self.cursor.position(self.id, self.attempt.number)

    def request(self, frontend: str) -> TurnRequest:
        """Returns the request of the current attempt. Its timeout counts from now."""
        number = self.attempt.number
        return TurnRequest(
            turn=self.id,
            frontend=frontend,
            conversation=self.conversation,
            attempt=number,
            timeout_s=self.deadline - asyncio.get_running_loop().time(),
            resume=self.resume,
            avoid=self.avoid,
            trace=self.span.carrier(number) if self.span is not None else {},
            held_s=self.held_s,
        )
