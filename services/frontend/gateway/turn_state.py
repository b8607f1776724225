"""Defines the states of a turn in the frontend, and a table of the events that change them.

One turn may take several attempts. An attempt is one request to a preprocessor, with the worker and
the parser that get it. A state holds what is true only in it. Other files of the gateway apply
events; every rule about their order is in this file.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from typing_extensions import override

from schemas.control import ModelCard, StreamPosition
from schemas.conversation import Conversation
from schemas.errors import MEDIA_MISSING, ErrorInfo, TimedOut, TurnwireError, Unavailable
from schemas.events import BrokenCall, Prepared
from schemas.notices import PromptSeen
from schemas.requests import TurnRequest
from services.frontend.gateway.turn_observer import BusTurnObserver
from services.frontend.turns.interfaces import Admitted, TurnSink
from services.runtime.streams.cursor import Cursor


@dataclass(slots=True, eq=False)
class Placing:
    """The task that finds processes for a turn: it makes one attempt after the other."""

    until: float
    """The event loop's time up to which the turn waits for processes that can take it."""
    task: "asyncio.Task[object] | None" = None

    def stop(self) -> None:
        """Stops the task from outside. Does nothing in the task itself, which then returns."""
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()


@dataclass(eq=False)
class Unplaced:
    """No worker has the turn."""

    placing: Placing


class Waiting(Unplaced):
    """The turn waits for stages that take work."""


class Preparing(Unplaced):
    """A preprocessor has the request."""


class Resuming(Unplaced):
    """An attempt after the first stream is waiting or being prepared."""


@dataclass(slots=True, eq=False)
class Streaming:
    """A worker and a parser have the turn, and its events go to the client."""

    worker: str
    parser: str
    lost_s: float = 0.0
    """Seconds since one of the two was lost, without the time in which this process was cut off."""
    dead_parser: str = ""
    """A parser that is known to be dead, not only suspended."""


@dataclass(slots=True, eq=False)
class Ended:
    """The client has the end, or an error, or is gone."""

    error: ErrorInfo | None = None
    """Set if the turn was given up with an error."""


State: TypeAlias = Waiting | Preparing | Streaming | Resuming | Ended


class StateEvent(Enum):
    """An event in the life of a turn."""

    REQUESTED = "the request of an attempt is sent to a preprocessor"
    PREPARED = "a parser has the stream of the attempt"
    REFUSED = "no preprocessor or worker accepted the attempt"
    TIMED_OUT = "the prompt was not ready in time"
    PROCESS_LEFT = "a process that may have the attempt was lost"
    RECONNECTED = "the connection to the bus was lost, with what was on its way"
    INTERRUPTED = "the worker was lost, or wrote a broken call; its parser hands back the tokens"
    TOKENS_LOST = "no process has the tokens of the turn"
    NO_SUCCESSOR = "no process took over in time"
    FINISHED = "the last event of the turn"
    GIVEN_UP = "the turn cannot be started or continued"
    CANCELLED = "the client hung up, reads too slowly, or the time of its request is over"


_OVER: Mapping[StateEvent, type[State]] = {StateEvent.GIVEN_UP: Ended, StateEvent.CANCELLED: Ended}
_ATTEMPT_FAILS = (
    StateEvent.REFUSED,
    StateEvent.TIMED_OUT,
    StateEvent.PROCESS_LEFT,
    StateEvent.RECONNECTED,
)

TRANSITIONS: Mapping[type[State], Mapping[StateEvent, type[State]]] = {
    Waiting: {StateEvent.REQUESTED: Preparing, **_OVER},
    Preparing: {
        StateEvent.PREPARED: Streaming,
        **dict.fromkeys(_ATTEMPT_FAILS, Waiting),
        **_OVER,
    },
    Streaming: {
        StateEvent.INTERRUPTED: Resuming,
        StateEvent.TOKENS_LOST: Resuming,
        StateEvent.NO_SUCCESSOR: Ended,
        StateEvent.FINISHED: Ended,
        **_OVER,
    },
    Resuming: {
        StateEvent.REQUESTED: Resuming,
        StateEvent.PREPARED: Streaming,
        **dict.fromkeys(_ATTEMPT_FAILS, Resuming),
        **_OVER,
    },
    Ended: {},
}
"""Events of each state, and the states that follow them. An ended turn ignores every event, because
any may come late. Elsewhere an event that is not in the table is a mistake of this frontend."""

# How the states are coupled with what is beside them:
#
# - `Placing.task` runs while a turn waits, prepares or resumes, and in no other state. It returns
#   when a worker has the turn, or no process can take it. From outside it is stopped by
#   `BusTurn.end`, and by nothing else.
# - `Attempt.outcome` is pending while a turn prepares; and while it resumes, from `REQUESTED` on.
#   Whatever fails an attempt calls `BusTurn.fail_attempt`, which ignores any but the current one.
# - An attempt that is not the current one any more is cancelled in all processes, and its number is
#   never used again. Events with another number do not reach the turn.
# - A streaming turn ignores a lost process and a new connection: the links send lost frames again,
#   and `ProcessWatch` reports turns that no process can continue.
# - `BusTurn.cursor` passes each event once over all attempts, so a stream that begins again adds
#   nothing to what the sink has. The sink is opened by the first `PREPARED`, and gets exactly one
#   terminal event, unless the client is gone.


@dataclass
class FailedAttempt:
    """No worker got the turn."""

    error: TurnwireError


class AttemptRefused(FailedAttempt):
    """The request cannot be served."""


class AttemptLost(FailedAttempt):
    """Another attempt may succeed."""


class ImageMissing(FailedAttempt):
    """The bucket does not have an image of the request any more."""


AttemptOutcome: TypeAlias = Prepared | AttemptRefused | AttemptLost | ImageMissing
"""The outcome of an attempt."""


def outcome_of(error: TurnwireError) -> AttemptRefused | AttemptLost | ImageMissing:
    """Returns what an error means for the attempt that got it."""
    if not isinstance(error, TimedOut | Unavailable):
        return AttemptRefused(error)
    if error.info.code == MEDIA_MISSING:
        return ImageMissing(error)
    return AttemptLost(error)


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of a turn."""

    number: int = 1
    preprocessor: str = ""
    """Set when one is chosen."""
    outcome: asyncio.Future[AttemptOutcome] | None = None
    """Set when the attempt is requested."""

    @property
    def is_pending(self) -> bool:
        """Whether the attempt is requested, but neither prepared nor failed."""
        return self.outcome is not None and not self.outcome.done()

    @property
    def is_settled(self) -> bool:
        """Whether the attempt is prepared or failed."""
        return self.outcome is not None and self.outcome.done()

    def settle(self, outcome: AttemptOutcome) -> None:
        """Sets the outcome of a pending attempt."""
        if self.outcome is not None:
            self.outcome.set_result(outcome)

    @override
    def __repr__(self) -> str:
        text = f"attempt {self.number}"
        if self.preprocessor:
            text += f" at {self.preprocessor}"
        if self.is_pending:
            text += ", pending"
        return text


@dataclass(slots=True, eq=False, repr=False)
class BusTurn:
    """One open turn of the gateway."""

    id: str
    admitted: Admitted
    """The request; after a move, that for the other model."""
    sink: TurnSink
    deadline: float
    """The event loop's time at which the request times out."""
    observer: BusTurnObserver
    state: State
    moved_to: str = ""
    """The model that the turn moved to, of those with its alias, while it waited; "": none."""
    compared: PromptSeen | None = None
    """The origin of the prompt that this turn's is compared with."""
    attempt: Attempt = field(default_factory=Attempt)
    failures: int = 0
    """Attempts that were lost or timed out since the turn last made progress."""
    held_s: float = 0.0
    """Seconds from the requests of earlier attempts until a worker had them, or they failed."""
    resume: bytes = b""
    """Output tokens of earlier attempts."""
    avoid: list[str] = field(default_factory=list)
    """Workers that failed this turn."""
    broken_call: BrokenCall | None = None
    """A call that an earlier attempt wrote after `resume`."""
    cursor: Cursor = field(default_factory=Cursor)

    @property
    def card(self) -> ModelCard:
        """The model that decodes the turn."""
        return self.admitted.card

    @property
    def conversation(self) -> Conversation:
        """The conversation for the pipeline."""
        return self.admitted.conversation

    @property
    def placing(self) -> Placing:
        """The placing of a turn that no worker has."""
        assert isinstance(self.state, Unplaced)
        return self.state.placing

    @property
    def resumed_tokens(self) -> int:
        """The number of ids in `resume`, which has four bytes for each."""
        return len(self.resume) // 4

    def enter(self, event: StateEvent, following: State) -> bool:
        """Enters the state that follows an event. Returns False if the turn has ended."""
        if isinstance(self.state, Ended):
            return False
        if TRANSITIONS[type(self.state)].get(event) is not type(following):
            self.observer.unexpected_event(repr(self), event.name)
            return False
        self.state = following
        return True

    def request_sent(self) -> asyncio.Future[AttemptOutcome]:
        """Applies `REQUESTED`. Returns the outcome of the attempt."""
        following: State = self.state
        if isinstance(following, Waiting):
            following = Preparing(following.placing)
        outcome: asyncio.Future[AttemptOutcome] = asyncio.get_running_loop().create_future()
        self.attempt.outcome = outcome
        self.enter(StateEvent.REQUESTED, following)
        return outcome

    def fail_attempt(self, attempt: Attempt, event: StateEvent, error: TurnwireError) -> bool:
        """Fails an attempt, if it is the current one and pending. Returns whether it was."""
        if attempt is not self.attempt or not attempt.is_pending:
            return False
        following: State = self.state
        if isinstance(following, Preparing):
            following = Waiting(following.placing)
        if not self.enter(event, following):
            return False
        attempt.settle(outcome_of(error))
        return True

    def apply_prepared(self, prepared: Prepared) -> None:
        """Applies `PREPARED`. A streaming turn may get it again, from another parser of the same
        attempt."""
        state = self.state
        if isinstance(state, Streaming):
            state.worker = prepared.worker
            state.parser = prepared.parser
        elif isinstance(state, Unplaced) and self.attempt.is_pending:
            self.enter(StateEvent.PREPARED, Streaming(prepared.worker, prepared.parser))
            self.attempt.settle(prepared)
            if isinstance(state, Preparing):
                self.sink.opened(prepared)

    def end(self, event: StateEvent, error: ErrorInfo | None = None) -> bool:
        """Applies an event that ends the turn, and stops its placing. Returns False if the turn had
        already ended."""
        state = self.state
        if not self.enter(event, Ended(error)):
            return False
        if isinstance(state, Unplaced):
            state.placing.stop()
        return True

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
            broken_call=self.broken_call,
            trace=self.observer.trace_of(number),
            held_s=self.held_s,
            time=time.time(),
        )

    @override
    def __repr__(self) -> str:
        name = type(self.state).__name__.upper()
        block, offset = self.cursor.text_position
        text = f"turn {self.id} {name}, {self.attempt}, at block {block} + {offset}"
        if isinstance(self.state, Streaming):
            text += f", worker {self.state.worker}, parser {self.state.parser}"
        return text
