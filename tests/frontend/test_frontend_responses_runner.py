"""What a turn without an HTTP response around it emits: once a tick, its end once, nothing when nobody wants it."""

import asyncio
from collections.abc import Sequence

import pytest
import structlog
from frontend_fakes import finish
from prometheus_client import CollectorRegistry

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import Delta, Failed, Prepared, TurnEvent
from services.frontend.flush import Flusher
from services.frontend.metrics import FrontendMetrics
from services.frontend.record import TurnRecord
from services.frontend.responses.runner import RunSink


class Renderer:
    def __init__(self) -> None:
        self.broken = False

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        return b"start"

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        if self.broken:
            raise ZeroDivisionError
        return "".join(event.text if isinstance(event, Delta) else "." for event in events).encode()

    def error(self, info: ErrorInfo) -> bytes:
        return b"error"


class Lane:
    """A sink and what it emitted."""

    def __init__(self) -> None:
        log = structlog.get_logger()
        loop = asyncio.get_running_loop()
        self.record = TurnRecord(FrontendMetrics(CollectorRegistry()), loop.time(), loop.time)
        self.record.opened("m")
        self.sink = RunSink(self.record, log, Flusher(log))
        self.renderer = Renderer()
        self.said: list[bytes] = []

    def attach(self) -> None:
        self.sink.attach(self.renderer, self.said.append, lambda: self.said.append(b"<end>"))


@pytest.fixture
async def lane() -> Lane:
    return Lane()


async def test_what_comes_in_one_tick_is_emitted_once(lane: Lane) -> None:
    lane.attach()
    lane.sink.push([Delta(0, 0, "a")])
    lane.sink.push([Delta(0, 1, "b")])
    assert lane.said == []
    await asyncio.sleep(0)
    assert lane.said == [b"ab"]
    lane.sink.push([Delta(0, 2, "c"), finish(1)])
    assert not lane.sink.done.is_set()
    await asyncio.sleep(0)
    assert lane.said == [b"ab", b"<end>", b"c."]
    assert lane.sink.done.is_set()


async def test_what_came_before_goes_when_it_is_attached(lane: Lane) -> None:
    lane.sink.push([Delta(0, 0, "a")])
    lane.sink.push([Delta(0, 1, "b"), finish(1)])
    await asyncio.sleep(0)
    assert lane.said == []
    lane.attach()
    assert lane.said == [b"<end>", b"ab."]
    lane.sink.push([Delta(0, 2, "late")])
    await asyncio.sleep(0)
    assert lane.said == [b"<end>", b"ab."]


async def test_what_ended_in_this_tick_is_emitted_at_once_when_the_time_is_over(lane: Lane) -> None:
    lane.attach()
    lane.sink.push([Delta(0, 0, "a"), finish(1)])
    lane.sink.flush()
    await asyncio.sleep(0)
    assert lane.said == [b"<end>", b"a."]


async def test_nothing_is_emitted_when_nobody_wants_it_any_more(lane: Lane) -> None:
    lane.attach()
    lane.sink.push([Delta(0, 0, "a")])
    lane.sink.done.set()
    lane.sink.push([Delta(0, 1, "b")])
    await asyncio.sleep(0)
    assert lane.said == []


async def test_what_cannot_be_rendered_ends_with_an_error(lane: Lane) -> None:
    lane.attach()
    lane.renderer.broken = True
    with structlog.testing.capture_logs() as lines:
        lane.sink.push([Delta(0, 0, "a")])
        await asyncio.sleep(0)
    assert lane.said == [b"<end>", b"error"]
    assert lane.record.outcome == "internal"
    assert lane.sink.done.is_set()
    assert not lane.sink.ended, "the turn goes on, and is to be cancelled"
    assert [line["event"] for line in lines] == ["turn.render_failed"]


async def test_a_turn_that_fails_at_once_is_refused(lane: Lane) -> None:
    assert lane.sink.refusal() is None
    error = ErrorInfo(ErrorKind.UNAVAILABLE, "no worker")
    lane.sink.push([Failed(error)])
    assert lane.sink.refusal() == error
