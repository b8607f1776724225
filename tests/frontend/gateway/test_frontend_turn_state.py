"""The attempts of a turn: one is prepared once, and an earlier one changes nothing any more."""

import pytest
import structlog

from schemas.control import ModelCard
from schemas.conversation import Conversation
from schemas.errors import Unavailable
from schemas.events import Prepared
from services.frontend.gateway.turn_observer import BusTurnObserver
from services.frontend.gateway.turn_state import (
    Attempt,
    AttemptLost,
    BusTurn,
    Ended,
    Placing,
    StateEvent,
    Streaming,
    Waiting,
)
from services.frontend.http.auth import anyone
from services.frontend.turns.interfaces import Admitted
from tests.kit.sinks import RecordingSink


def turn(sink: RecordingSink | None = None) -> BusTurn:
    return BusTurn(
        id="t",
        admitted=Admitted(anyone(), ModelCard("m"), Conversation("m", [])),
        sink=sink or RecordingSink(),
        deadline=60.0,
        observer=BusTurnObserver(structlog.get_logger(), "t"),
        state=Waiting(Placing(30.0)),
    )


def test_unexpected_event_changes_nothing() -> None:
    opened = turn()
    with pytest.raises(AssertionError, match="FINISHED"):  # `strict_states`
        opened.enter(StateEvent.FINISHED, Ended())
    assert isinstance(opened.state, Waiting)
    assert opened.end(StateEvent.CANCELLED)
    assert not opened.enter(StateEvent.FINISHED, Ended()), "late"


async def test_attempt_is_prepared_once() -> None:
    sink = RecordingSink()
    opened = turn(sink=sink)
    outcome = opened.request_sent()
    opened.apply_prepared(
        Prepared(prompt_tokens=1, max_tokens=9, worker="worker-1", parser="parser-1")
    )
    prepared = await outcome
    assert isinstance(prepared, Prepared)
    assert prepared.worker == "worker-1"
    stream = opened.state
    assert isinstance(stream, Streaming)
    opened.apply_prepared(
        Prepared(prompt_tokens=1, max_tokens=9, worker="worker-1", parser="parser-2")
    )
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
    assert await outcome == AttemptLost(busy)
    opened.attempt = Attempt(2)
    opened.request_sent()
    assert not opened.fail_attempt(earlier, StateEvent.TIMED_OUT, Unavailable("late"))
    assert "PREPARING" in repr(opened)
    assert opened.attempt.is_pending
