"""Turns while they are opened: a stream that begins in the call that brings its first events, and
the end of what was begun."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import BlockStart, Delta, Failed, TurnEvent
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import MODEL, chat, messages
from tests.kit.clock import LoopClock
from tests.kit.events import finish, text
from tests.kit.frontend import FakeGateway, FakeTurn, serving
from tests.kit.waiting import LIMIT_S, eventually

WHOLE = [*text(0, "Hello there"), finish(1)]
SO: list[TurnEvent] = [BlockStart(0, "text"), Delta(0, 0, "so")]


def eager(first: list[TurnEvent], returns: asyncio.Event, *, at_once: bool = False) -> FakeGateway:
    """Reports that the turn is prepared and plays its first events, as one frame of the bus does.
    Returns from `open` only after `returns`.

    `at_once`: the events come before the handler's task has let go of the loop.
    """

    async def begin(turn: FakeTurn) -> None:
        if not at_once:
            await asyncio.sleep(0)
        turn.sink.opened(turn.prepared)
        turn.sink.push(first)
        await returns.wait()

    return FakeGateway(list, on_turn=begin)


@pytest.fixture
def returns() -> asyncio.Event:
    return asyncio.Event()


@pytest.mark.parametrize("at_once", [False, True], ids=["made ready", "not ready yet"])
async def test_first_events_are_written_before_the_gateway_returns(
    at_once: bool, returns: asyncio.Event
) -> None:
    said = b'"text":"so"'
    gateway = eager(SO, returns, at_once=at_once)
    async with (
        serving(gateway) as served,
        served.http.post("/v1/messages", json=messages(stream=True)) as response,
    ):
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["request-id"].startswith("req_")
        assert "date" in response.headers
        got = b""
        while said not in got:
            got += await response.content.readany()
        returns.set()
        gateway.turns[0].sink.push([Delta(0, 2, " it is"), *WHOLE[-2:]])
        got += await response.content.read()
    assert b" it is" in got
    assert got.count(said) == 1
    assert served.lines[-1]["outcome"] == "stop"
    assert served.lines[-1]["prompt_tokens"] == 656
    assert gateway.turns[0].cancelled == []


async def test_answer_that_arrives_at_once_is_complete(returns: asyncio.Event) -> None:
    """Or is a status, if the turn fails before its first block."""
    returns.set()
    async with serving(eager(WHOLE, returns), headers={"connection": "close"}) as served:
        reply = await served.ask(stream=True)
        assert reply.headers["connection"] == "close"
        assert reply.text.endswith('data: {"type":"message_stop"}\n\n')
        body = reply.text
        assert body.count("event: message_start") == body.count("event: message_stop") == 1
        assert (await served.ask()).json["content"][0]["text"] == "Hello there"
    assert [turn.cancelled for turn in served.gateway.turns] == [[], []]
    failed = Failed(ErrorInfo(ErrorKind.UNAVAILABLE, "no worker"))
    async with serving(eager([failed], returns)) as served:
        for _ in range(2):  # on one connection
            reply = await served.ask(stream=True)
            assert reply.status == 503
            assert reply.headers["content-type"].startswith("application/json")
            assert reply.error[2] == "no worker"
            assert "transfer-encoding" not in reply.headers
    assert served.lines[-1]["outcome"] == "unavailable"


async def test_timeout_after_the_start_is_an_event_of_the_stream(
    returns: asyncio.Event, loop_clock: LoopClock
) -> None:
    async with (
        serving(eager(SO, returns), FrontendConfig(request_timeout_s=30)) as served,
        served.http.post("/v1/messages", json=messages(stream=True)) as response,
    ):
        assert response.status == 200
        loop_clock.passed += 30
        body = await response.text()
    assert '"text":"so"' in body
    last = body.rstrip().rpartition("\n\n")[2]
    assert last.startswith('event: error\ndata: {"type":"error","error":{"type":"timeout_error"')
    assert served.gateway.open_cancelled_for == "timeout"
    assert served.lines[-1]["outcome"] == "timed_out"


async def test_hangup_after_the_start_cancels_the_opening(returns: asyncio.Event) -> None:
    async with serving(eager(SO, returns)) as served:
        response = await served.http.post("/v1/messages", json=messages(stream=True))
        response.close()
        await asyncio.wait_for(served.gateway.open_cancelled.wait(), LIMIT_S)
        await eventually(lambda: bool(served.lines))
    assert served.lines[-1]["outcome"] == "hangup"
    assert served.gateway.open_cancelled_for == "hangup"


@pytest.mark.parametrize("body", [messages(stream=True), messages(), chat(n=2)])
async def test_turn_that_moved_to_another_model_counts_for_that(body: dict[str, Any]) -> None:
    async def move(turn: FakeTurn) -> None:
        turn.sink.opened(replace(turn.prepared, model="acme/other"))

    gateway = FakeGateway(lambda: [WHOLE], on_turn=move)
    async with serving(gateway) as served:
        path = "/v1/chat/completions" if "n" in body else "/v1/messages"
        assert (await served.post(path, body)).status == 200
        await eventually(lambda: "outcome" in served.lines[-1])
        assert served.lines[-1]["model"] == "acme/other"
        usage = (await served.get("/v1/usage")).json
        assert [*usage["models"]] == ["acme/other"]
    count = served.registry.get_sample_value
    assert count("turnwire_time_to_first_token_seconds_count", {"model": "acme/other"}) == 1
    assert count("turnwire_generation_tokens_total", {"model": MODEL}) == 0
    for model in (MODEL, "acme/other"):
        assert count("turnwire_requests_running", {"model": model}) == 0
