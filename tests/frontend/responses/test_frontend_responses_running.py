"""Tests what a turn without an HTTP response emits: once per tick, one end, nothing after close."""

import asyncio
import time
from collections.abc import Sequence
from typing import Literal

import pytest
import structlog
from prometheus_client import CollectorRegistry

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import Delta, Failed, Prepared, TurnEvent
from services.frontend.apis.responses.dialect import Responses
from services.frontend.apis.responses.state.recording import AcceptedRequest, InputItems
from services.frontend.apis.responses.state.running import RunningResponse
from services.frontend.http.middleware import RequestContext
from services.frontend.turns.answer import RunningAnswer
from services.frontend.turns.metrics import FrontendMetrics
from services.frontend.turns.sinks import StreamSink
from services.frontend.turns.turn_service import ModelAccess, TurnService
from services.runtime.config import FrontendConfig
from tests.kit.events import finish, text
from tests.kit.frontend import FakeGateway, admission


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


def service(config: FrontendConfig, gateway: FakeGateway) -> TurnService:
    log, metrics = structlog.get_logger(), FrontendMetrics(CollectorRegistry())
    return TurnService(admission(gateway), config, metrics, log)


def model_of(turns: TurnService) -> ModelAccess:
    return ModelAccess(turns, RequestContext("0" * 24, None, asyncio.get_running_loop().time()))


def accepted() -> AcceptedRequest:
    converted = Responses().parse(b'{"model": "acme/served-model", "input": "Hi."}', {})
    turn_id = "0" * 24
    return AcceptedRequest(converted, turn_id, None, InputItems(converted.request, turn_id))


class Emitted(RunningResponse):
    """Keeps what is emitted."""

    def __init__(self, model: ModelAccess) -> None:
        super().__init__(accepted(), model)
        self.parts: list[bytes] = []

    def emit(self, rendered: bytes) -> None:
        self.parts.append(rendered)

    def on_end(self) -> None:
        self.parts.append(b"<end>")


class Lane:
    """A sink and what it emitted."""

    def __init__(self) -> None:
        model = model_of(service(FrontendConfig(), FakeGateway()))
        self.answer = RunningAnswer(model, "responses")
        self.record = self.answer.record
        self.renderer = Renderer()
        self.writer = Emitted(model)

    async def admit(self) -> None:
        admitted = await self.answer.admit(self.writer.accepted.converted)
        info = self.answer.info(admitted)
        flusher = self.answer.turns.flusher
        self.sink = StreamSink(self.record, lambda _: self.renderer, info, self.writer, flusher)
        self.sink.expect_choices(1)

    @property
    def emitted(self) -> list[bytes]:
        return self.writer.parts

    def begin(self) -> None:
        self.sink.begin([Prepared(1, 1)])


@pytest.fixture
async def lane() -> Lane:
    lane = Lane()
    await lane.admit()
    return lane


async def test_events_of_one_tick_are_emitted_together(lane: Lane) -> None:
    lane.begin()
    lane.sink.push([Delta(0, 0, "a")])
    lane.sink.push([Delta(0, 1, "b")])
    assert lane.emitted == [b"start"]
    await asyncio.sleep(0)
    assert lane.emitted == [b"start", b"ab"]
    lane.sink.push([Delta(0, 2, "c"), finish(1)])
    assert not lane.writer.sent.is_set()
    await asyncio.sleep(0)
    assert lane.emitted == [b"start", b"ab", b"<end>", b"c."]
    assert lane.writer.sent.is_set()


async def test_early_events_are_emitted_at_the_start(lane: Lane) -> None:
    lane.sink.push([Delta(0, 0, "a")])
    lane.sink.push([Delta(0, 1, "b"), finish(1)])
    await asyncio.sleep(0)
    assert lane.emitted == []
    lane.begin()
    assert lane.emitted == [b"startab.", b"<end>"]
    lane.sink.push([Delta(0, 2, "late")])
    await asyncio.sleep(0)
    assert lane.emitted == [b"startab.", b"<end>"]


async def test_nothing_is_emitted_after_close(lane: Lane) -> None:
    lane.begin()
    lane.sink.push([Delta(0, 0, "a")])
    lane.writer.closed = True
    lane.sink.push([Delta(0, 1, "b")])
    await asyncio.sleep(0)
    assert lane.emitted == [b"start"]


async def test_rendering_error_ends_the_stream_with_an_error(lane: Lane) -> None:
    lane.begin()
    lane.renderer.broken = True
    with structlog.testing.capture_logs() as lines:
        lane.sink.push([Delta(0, 0, "a")])
        await asyncio.sleep(0)
    assert lane.emitted == [b"start", b"<end>", b"error"]
    assert lane.record.outcome == "internal"
    assert lane.writer.sent.is_set()
    assert not lane.sink.ended, "the turn goes on, and is to be cancelled"
    assert [line["event"] for line in lines] == ["turn.render_failed"]


async def test_turn_that_fails_at_once_is_refused(lane: Lane) -> None:
    assert lane.sink.refusal() is None
    error = ErrorInfo(ErrorKind.UNAVAILABLE, "no worker")
    lane.sink.push([Failed(error)])
    assert lane.sink.refusal() == error


class Stall(asyncio.Event):
    """Blocks the loop until the turn's time limit."""

    async def wait(self) -> Literal[True]:
        time.sleep(0.1)  # noqa: ASYNC251 - the loop is to stand still
        return True


async def test_turn_that_ends_with_its_time_limit_is_complete() -> None:
    gateway = FakeGateway(lambda: [text(0, "Hello"), Stall(), [finish(1)]])
    model = model_of(service(FrontendConfig(request_timeout_s=0.05), gateway))
    response = Emitted(model)
    with structlog.testing.capture_logs() as lines:
        await response.make()
    assert response.parts[-2] == b"<end>"
    assert b"response.completed" in response.parts[-1]
    assert [line["outcome"] for line in lines] == ["stop"]
    assert gateway.turns[0].cancelled == []
