"""Tests a turn without an HTTP response."""

import asyncio
import time
from typing import Literal

import structlog
from prometheus_client import CollectorRegistry

from services.frontend.apis.responses.dialect import Responses
from services.frontend.apis.responses.state.recording import AcceptedRequest, InputItems
from services.frontend.apis.responses.state.running import RunningResponse
from services.frontend.http.middleware import RequestContext
from services.frontend.turns.metrics import FrontendMetrics
from services.frontend.turns.turn_service import ModelAccess, TurnService
from services.runtime.config import FrontendConfig
from tests.kit.events import finish, text
from tests.kit.frontend import FakeGateway, admission


class Emitted(RunningResponse):
    """Keeps what is emitted."""

    def __init__(self, model: ModelAccess) -> None:
        turn_id = "0" * 24
        converted = Responses().parse(b'{"model": "acme/served-model", "input": "Hi."}', {})
        items = InputItems(converted.request, turn_id)
        super().__init__(AcceptedRequest(converted, turn_id, None, items), model)
        self.parts: list[bytes] = []

    def emit(self, rendered: bytes) -> None:
        self.parts.append(rendered)

    def on_end(self) -> None:
        self.parts.append(b"<end>")


class Stall(asyncio.Event):
    """Blocks the loop until the turn's time limit."""

    async def wait(self) -> Literal[True]:
        time.sleep(0.1)  # noqa: ASYNC251 - the loop is to stand still
        return True


async def test_turn_that_ends_with_its_time_limit_is_complete() -> None:
    gateway = FakeGateway(lambda: [text(0, "Hello"), Stall(), [finish(1)]])
    metrics = FrontendMetrics(CollectorRegistry())
    config = FrontendConfig(request_timeout_s=0.05)
    turns = TurnService(admission(gateway), config, metrics, structlog.get_logger())
    now = asyncio.get_running_loop().time()
    response = Emitted(ModelAccess(turns, RequestContext("0" * 24, None, now)))
    with structlog.testing.capture_logs() as lines:
        await response.make()
    assert response.parts[-2] == b"<end>"
    assert b"response.completed" in response.parts[-1]
    assert [line["outcome"] for line in lines] == ["stop"]
    assert gateway.turns[0].cancelled == []
