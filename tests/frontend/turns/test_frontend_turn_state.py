"""Every event in every state: it changes the state as the table has it, or nothing at all."""

import asyncio
from itertools import product

import pytest

from schemas.control import ModelCard
from schemas.conversation import Conversation
from schemas.errors import Unavailable
from schemas.events import Prepared, TurnEvent
from services.frontend.turns.turn_state import TRANSITIONS, Attempt, BusTurn, Event, State

IGNORED = {
    State.WAITING: {
        Event.PREPARED,
        Event.REFUSED,
        Event.TIMED_OUT,
        Event.PROCESS_LEFT,
        Event.RECONNECTED,
        Event.INTERRUPTED,
        Event.TOKENS_LOST,
        Event.NO_SUCCESSOR,
        Event.FINISHED,
    },
    State.PREPARING: {
        Event.REQUESTED,
        Event.INTERRUPTED,
        Event.TOKENS_LOST,
        Event.NO_SUCCESSOR,
        Event.FINISHED,
    },
    State.STREAMING: {
        Event.REQUESTED,
        Event.PREPARED,
        Event.REFUSED,
        Event.TIMED_OUT,
        Event.PROCESS_LEFT,
        Event.RECONNECTED,
    },
    State.RESUMING: {
        Event.INTERRUPTED,
        Event.TOKENS_LOST,
        Event.NO_SUCCESSOR,
        Event.FINISHED,
    },
    State.ENDED: set(Event),
}
"""What changes nothing, by state."""


class Sink:
    def __init__(self) -> None:
        self.prepared: list[Prepared] = []

    def opened(self, prepared: Prepared) -> None:
        self.prepared.append(prepared)

    def push(self, events: list[TurnEvent], tokens: int = 0) -> None: ...


def turn(state: State = State.WAITING) -> BusTurn:
    opened = BusTurn(
        "t", ModelCard("m"), Conversation("m", []), Sink(), 60.0, lambda *_: None, 30.0
    )
    opened.state = state
    return opened


@pytest.mark.parametrize(
    ("state", "event"), [*product(State, Event)], ids=lambda member: member.name.lower()
)
def test_event_changes_the_state_or_nothing(state: State, event: Event) -> None:
    walked = turn(state)
    following = TRANSITIONS[state].get(event)
    assert (following is None) is (event in IGNORED[state])
    assert walked.take(event) is (following is not None)
    assert walked.state is (following or state)


def test_every_state_but_the_end_can_be_left_and_reached() -> None:
    reached = {State.WAITING} | {
        after for events in TRANSITIONS.values() for after in events.values()
    }
    assert reached == set(State)
    for state in set(State) - {State.ENDED}:
        assert (
            TRANSITIONS[state][Event.GIVEN_UP] is TRANSITIONS[state][Event.CANCELLED] is State.ENDED
        )


async def test_attempt_is_prepared_once() -> None:
    opened, sink = turn(), Sink()
    opened.sink = sink
    assert opened.take(Event.REQUESTED)
    outcome = opened.attempt.outcome = asyncio.get_running_loop().create_future()
    opened.take_prepared(Prepared(1, 9, "worker-1", "parser-1"))
    assert opened.state is State.STREAMING
    assert (await outcome).worker == "worker-1"
    opened.take_prepared(Prepared(1, 9, "worker-1", "parser-2"))
    assert opened.attempt.parser == "parser-2"
    assert len(sink.prepared) == 1
    assert not opened.take_failure(opened.attempt, Event.PROCESS_LEFT, Unavailable("late"))
    assert opened.state is State.STREAMING


@pytest.mark.parametrize("state", [State.WAITING, State.RESUMING, State.ENDED])
def test_attempt_without_a_request_is_not_prepared(state: State) -> None:
    opened = turn(state)
    opened.take_prepared(Prepared(1, 9, "worker-1", "parser-1"))
    assert opened.state is state
    assert (opened.attempt.worker, opened.attempt.parser) == ("", "")


async def test_failure_of_an_earlier_attempt_changes_nothing() -> None:
    opened = turn()
    opened.take(Event.REQUESTED)
    earlier = opened.attempt
    earlier.outcome = asyncio.get_running_loop().create_future()
    assert opened.take_failure(earlier, Event.REFUSED, Unavailable("busy"))
    assert opened.state.name == "WAITING"
    with pytest.raises(Unavailable):
        await earlier.outcome
    opened.attempt = Attempt(2, outcome=asyncio.get_running_loop().create_future())
    opened.take(Event.REQUESTED)
    assert not opened.take_failure(earlier, Event.TIMED_OUT, Unavailable("late"))
    assert opened.state.name == "PREPARING"
    assert opened.attempt.is_pending


async def test_sink_of_a_resumed_turn_is_not_opened_again() -> None:
    opened, sink = turn(State.RESUMING), Sink()
    opened.sink = sink
    opened.attempt.outcome = asyncio.get_running_loop().create_future()
    opened.take_prepared(Prepared(1, 9, "worker-2", "parser-1"))
    assert opened.state is State.STREAMING
    assert sink.prepared == []
