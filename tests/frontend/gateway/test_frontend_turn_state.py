"""Every event in every state: it changes the state as the table has it, or nothing at all."""

from itertools import product

import pytest
import structlog

from schemas.control import ModelCard
from schemas.conversation import Conversation
from schemas.errors import Unavailable
from schemas.events import Prepared
from services.frontend.gateway.turn_observer import BusTurnObserver
from services.frontend.gateway.turn_state import (
    TRANSITIONS,
    Attempt,
    BusTurn,
    Ended,
    Lost,
    Preparing,
    Resuming,
    Search,
    State,
    StateEvent,
    Streaming,
    Waiting,
)
from tests.kit.every import for_rows
from tests.kit.sinks import RecordingSink

STATES: tuple[type[State], ...] = (Waiting, Preparing, Streaming, Resuming, Ended)


def events(names: str) -> set[StateEvent]:
    return {StateEvent[name] for name in names.split()}


OF_A_STREAM = events("INTERRUPTED TOKENS_LOST NO_SUCCESSOR FINISHED")
OF_A_REQUEST = events("PREPARED REFUSED TIMED_OUT PROCESS_LEFT RECONNECTED")
UNEXPECTED: dict[type[State], set[StateEvent]] = {
    Waiting: OF_A_REQUEST | OF_A_STREAM,
    Preparing: events("REQUESTED") | OF_A_STREAM,
    Streaming: events("REQUESTED") | OF_A_REQUEST,
    Resuming: OF_A_STREAM,
    Ended: set(StateEvent),
}
"""What changes nothing, by state. In an ended turn it may come; elsewhere it is a mistake."""


def state_of(kind: type[State]) -> State:
    if kind is Streaming:
        return Streaming("worker-1", "parser-1")
    if kind is Ended:
        return Ended()
    return kind(Search(30.0))  # type: ignore[call-arg,arg-type]


def turn(kind: type[State] = Waiting, sink: RecordingSink | None = None) -> BusTurn:
    return BusTurn(
        id="t",
        card=ModelCard("m"),
        conversation=Conversation("m", []),
        sink=sink or RecordingSink(),
        deadline=60.0,
        observer=BusTurnObserver(structlog.get_logger(), "t"),
        state=state_of(kind),
    )


@for_rows([*product(STATES, StateEvent)])
def test_event_changes_the_state_or_nothing(state: type[State], event: StateEvent) -> None:
    walked = turn(state)
    before = walked.state
    following = TRANSITIONS[state].get(event)
    assert (following is None) is (event in UNEXPECTED[state])
    if following is not None:
        after = state_of(following)
        assert walked.enter(event, after)
        assert walked.state is after
    elif state is Ended:
        assert not walked.enter(event, Ended())
        assert walked.state is before
    else:
        with pytest.raises(AssertionError, match=event.name):
            walked.enter(event, Ended())
        assert walked.state is before


async def test_attempt_is_prepared_once() -> None:
    sink = RecordingSink()
    opened = turn(sink=sink)
    outcome = opened.request_sent()
    opened.apply_prepared(Prepared(1, 9, "worker-1", "parser-1"))
    prepared = await outcome
    assert isinstance(prepared, Prepared)
    assert prepared.worker == "worker-1"
    stream = opened.state
    assert isinstance(stream, Streaming)
    opened.apply_prepared(Prepared(1, 9, "worker-1", "parser-2"))
    assert opened.state is stream
    assert stream.parser == "parser-2"
    assert len(sink.prepared) == 1
    assert not opened.fail_attempt(opened.attempt, StateEvent.PROCESS_LEFT, Unavailable("late"))
    assert opened.state is stream


async def test_failure_of_an_earlier_attempt_changes_nothing() -> None:
    opened = turn()
    busy = Unavailable("busy")
    earlier, outcome = opened.attempt, opened.request_sent()
    assert opened.fail_attempt(earlier, StateEvent.REFUSED, busy)
    assert isinstance(opened.state, Waiting)
    assert await outcome == Lost(busy)
    opened.attempt = Attempt(2)
    opened.request_sent()
    assert not opened.fail_attempt(earlier, StateEvent.TIMED_OUT, Unavailable("late"))
    assert "PREPARING" in repr(opened)
    assert opened.attempt.is_pending
