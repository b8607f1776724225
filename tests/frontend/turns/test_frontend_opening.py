"""A stream that begins in the call that brings its first events, while the gateway has not yet
returned the turn."""

import asyncio
from typing import Any

import pytest
from aiohttp import ClientSession

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import BlockStart, Delta, Failed, TurnEvent
from services.frontend.apis.messages.render import MessagesStream
from services.frontend.turns.interfaces import Admitted, TurnSink
from services.runtime.config import FrontendConfig
from tests.kit.events import finish, text
from tests.kit.frontend import MODEL, FakeGateway, FakeTurn, serving

STREAM: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 99,
    "stream": True,
    "messages": [{"role": "user", "content": "hi"}],
}
WHOLE = [*text(0, "Hello there"), finish(1)]
RESPONSE = {"model": MODEL, "stream": True, "store": False, "input": "hi"}


class Eager(FakeGateway):
    """Reports that the turn is prepared and plays its first events, as one frame of the bus does.
    Returns from `open` only after `returns`."""

    def __init__(self, first: list[TurnEvent]) -> None:
        super().__init__()
        self.first = first
        self.returns = asyncio.Event()
        self.at_once = False
        """The events come before the handler's task has let go of the loop."""

    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> FakeTurn:
        turn = FakeTurn(turn_id, admitted.card, admitted.conversation, sink)
        self.turns.append(turn)
        if not self.at_once:
            await asyncio.sleep(0)
        sink.opened(turn.prepared)
        sink.push(self.first)
        try:
            await self.returns.wait()
        except asyncio.CancelledError:
            self.open_cancelled.set()
            raise
        return turn


@pytest.mark.parametrize("at_once", [False, True], ids=["made ready", "not ready yet"])
@pytest.mark.parametrize(
    ("path", "ask", "said"),
    [
        ("/v1/messages", STREAM, b'"text":"so"'),
        ("/v1/chat/completions", STREAM, b'"content":"so"'),
        ("/v1/responses", RESPONSE, b'"delta":"so"'),
    ],
    ids=["messages", "chat", "responses"],
)
async def test_first_events_are_written_before_the_gateway_returns(
    path: str, ask: dict[str, Any], said: bytes, at_once: bool
) -> None:
    gateway = Eager([BlockStart(0, "text"), Delta(0, 0, "so")])
    gateway.at_once = at_once
    async with serving(gateway) as served, ClientSession(served.url) as http:
        response = await http.post(path, json=ask)
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["request-id"].startswith("req_")
        assert "date" in response.headers
        got = b""
        while said not in got:
            got += await response.content.readany()
        assert not gateway.returns.is_set()
        gateway.returns.set()
        gateway.turns[0].sink.push([Delta(0, 2, " it is"), *WHOLE[-2:]])
        got += await response.content.read()
    assert b" it is" in got
    assert got.count(said) == 1
    assert served.lines[-1]["outcome"] == "stop"
    assert served.lines[-1]["prompt_tokens"] == 656
    assert gateway.turns[0].cancelled == []


async def test_answer_that_arrives_at_once_is_complete() -> None:
    gateway = Eager(WHOLE)
    gateway.returns.set()
    async with serving(gateway) as served, ClientSession(served.url) as http:
        for _ in range(2):  # on one connection
            body = await (await http.post("/v1/messages", json=STREAM)).text()
            assert body.count("event: message_start") == body.count("event: message_stop") == 1
    assert [turn.cancelled for turn in gateway.turns] == [[], []]


async def test_turn_that_fails_before_its_first_block_is_a_status() -> None:
    gateway = Eager([Failed(ErrorInfo(ErrorKind.UNAVAILABLE, "no worker"))])
    gateway.returns.set()
    async with serving(gateway) as served, ClientSession(served.url) as http:
        response = await http.post("/v1/messages", json=STREAM)
        assert response.status == 503
        assert response.content_type == "application/json"
        assert (await response.json())["error"]["message"] == "no worker"
        assert "transfer-encoding" not in response.headers
    assert served.lines[-1]["outcome"] == "unavailable"


async def test_timeout_after_the_start_is_an_event_of_the_stream() -> None:
    gateway = Eager([BlockStart(0, "text"), Delta(0, 0, "so")])
    async with (
        serving(gateway, FrontendConfig(request_timeout_s=1.0)) as served,
        ClientSession(served.url) as http,
    ):
        response = await http.post("/v1/messages", json=STREAM)
        assert response.status == 200
        body = await response.text()
    assert '"text":"so"' in body
    last = body.rstrip().rpartition("\n\n")[2]
    assert last.startswith('event: error\ndata: {"type":"error","error":{"type":"timeout_error"')
    assert gateway.open_cancelled.is_set()
    assert served.lines[-1]["outcome"] == "timed_out"


async def test_hangup_after_the_start_cancels_the_opening() -> None:
    gateway = Eager([BlockStart(0, "text"), Delta(0, 0, "so")])
    async with serving(gateway) as served, ClientSession(served.url) as http:
        response = await http.post("/v1/messages", json=STREAM)
        response.close()
        await asyncio.wait_for(gateway.open_cancelled.wait(), 60)
        while not served.lines:
            await asyncio.sleep(0)
    assert served.lines[-1]["outcome"] == "hangup"


@pytest.mark.parametrize("eager", [False, True])
async def test_stream_that_cannot_start_is_a_500(
    monkeypatch: pytest.MonkeyPatch, eager: bool
) -> None:
    def broken(*_: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(MessagesStream, "start", broken)
    gateway = FakeGateway(lambda: [WHOLE])
    if eager:
        gateway = Eager([BlockStart(0, "text"), Delta(0, 0, "so")])
        gateway.returns.set()
    async with serving(gateway) as served, ClientSession(served.url) as http:
        response = await http.post("/v1/messages", json=STREAM)
        assert response.status == 500
        assert (await response.json())["type"] == "error"
    assert served.lines[-1]["outcome"] == "internal"
    if eager:
        assert served.lines[0]["event"] == "turn.begin_failed"
        assert gateway.turns[0].cancelled == ["hangup"], (
            "the gateway was not disturbed, and the turn given up"
        )


async def test_connection_close_is_confirmed() -> None:
    async with serving() as served, ClientSession(served.url) as http:
        response = await http.post("/v1/messages", json=STREAM, headers={"connection": "close"})
        assert response.headers["connection"] == "close"
        assert (await response.text()).endswith('data: {"type":"message_stop"}\n\n')
