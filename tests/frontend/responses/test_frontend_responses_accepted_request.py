"""Tests what is stored of the responses to HTTP requests, and when."""

import asyncio
import json
from unittest.mock import MagicMock

import pytest

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import Failed
from services.frontend.apis.responses.render.stream import ResponsesStream
from services.frontend.stored.record import StoredResponse
from services.runtime.config.frontend import FrontendConfig
from tests.frontend.responses.responses_client import ANSWER, Client, agent, said, types
from tests.kit.answers import events
from tests.kit.bodies import MODEL
from tests.kit.clock import LoopClock
from tests.kit.events import text
from tests.kit.frontend import FakeGateway, Served, serving
from tests.kit.waiting import LIMIT_S


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway(agent)


async def test_response_is_stored_as_it_was_sent(client: Client) -> None:
    made = await client.create(metadata={"a": "b"})
    assert made["status"] == "completed"
    assert types(made["output"]) == ANSWER
    assert await client.get(made["id"]) == made
    error = await client.refused("GET", f"/{made['id']}?stream=true")
    assert error["param"] == "stream", "it was not streamed"
    error = await client.refused("POST", f"/{made['id']}/cancel")
    assert error["message"] == "Cannot cancel a synchronous response."


async def test_streamed_response_is_stored_and_replayed_from_any_event(client: Client) -> None:
    sent = await client.stream()
    made = sent[-1]["response"]
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    assert await client.get(made["id"]) == made
    assert await client.replay(made["id"]) == sent
    for after in (0, 5, len(sent) - 1, len(sent) + 7):
        assert await client.replay(made["id"], after) == sent[after + 1 :], after
    error = await client.refused("GET", f"/{made['id']}?stream=true&starting_after=-1")
    assert error["param"] == "starting_after"


async def test_store_false_stores_nothing(client: Client) -> None:
    whole = await client.create(store=False)
    streamed = (await client.stream(store=False))[-1]["response"]
    for made in (whole, streamed):
        assert made["store"] is False
        error = await client.refused("GET", f"/{made['id']}", 404)
        assert error["message"] == f"Response with id '{made['id']}' not found."
        error = await client.refuse(previous_response_id=made["id"])
        assert error["code"] == "previous_response_not_found"
        assert error["param"] == "previous_response_id"


async def test_response_is_stored_before_its_end_is_sent(served: Served) -> None:
    """A client may continue from a response as soon as it receives `response.completed`."""
    body = {"model": MODEL, "input": "hi", "stream": True}
    async with served.http.post("/v1/responses", json=body) as response:
        async for line in response.content:
            if line.startswith(b'data: {"type":"response.completed"'):
                event = json.loads(line[6:])
                assert (
                    await served.responses.store.get(StoredResponse, event["response"]["id"], None)
                    is not None
                )
                return
    raise AssertionError("the response did not end")


async def test_failed_response_is_stored(client: Client, gateway: FakeGateway) -> None:
    gone = Failed(ErrorInfo(ErrorKind.ENGINE, "Gone."))
    gateway.steps = lambda: [[*text(0, "So far")], [gone]]
    end = (await client.stream())[-1]
    assert (end["type"], end["response"]["status"]) == ("response.failed", "failed")
    assert await client.get(end["response"]["id"]) == end["response"]


async def test_streamed_response_over_the_time_limit_is_stored_as_failed(
    gateway: FakeGateway, loop_clock: LoopClock
) -> None:
    late = asyncio.Event()
    gateway.steps = lambda: [[*text(0, "So far")], late]
    async with serving(gateway, FrontendConfig(request_timeout_s=30)) as served:
        client = Client(served)
        body = {"model": MODEL, "input": "hi", "stream": True}
        async with served.http.post("/v1/responses", json=body) as response:
            begun = await response.content.readuntil(b"response.output_text.delta")
            loop_clock.passed += 30
            rest = await asyncio.wait_for(response.content.read(), LIMIT_S)
        sent = [event for event in events(begun + rest) if event["type"] != "keepalive"]
        end = sent[-1]
        assert (end["type"], end["response"]["status"]) == ("response.failed", "failed")
        id = end["response"]["id"]
        assert await client.get(id) == end["response"]
        assert await client.replay(id) == sent
        gateway.steps = agent
        going_on = await client.create(previous_response_id=id)
        assert going_on["status"] == "completed"
    history = said(gateway.turns[-1].conversation)
    assert ("assistant", ["So far"]) in history


async def test_streamed_response_that_cannot_be_rendered_is_stored_as_failed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ResponsesStream, "render", MagicMock(side_effect=ZeroDivisionError))
    end = (await client.stream())[-1]
    assert (end["type"], end["response"]["status"]) == ("response.failed", "failed")
    assert await client.get(end["response"]["id"]) == end["response"]


async def test_document_that_cannot_be_stored_is_still_sent(
    client: Client, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.responses.store, "put", MagicMock(side_effect=MemoryError))
    assert (await client.create())["status"] == "completed"
    assert [line["event"] for line in served.lines].count("turn.end_failed") == 1


async def test_response_is_not_stored_after_a_hangup(served: Served, gateway: FakeGateway) -> None:
    gateway.steps = lambda: [[*text(0, "So far")], asyncio.Event()]
    body = {"model": MODEL, "input": "hi", "stream": True}
    async with served.http.post("/v1/responses", json=body) as response:
        await response.content.readuntil(b"response.output_text.delta")
    turn = gateway.turns[0]
    await asyncio.wait_for(turn.cancel_seen.wait(), LIMIT_S)
    assert await served.responses.store.get(StoredResponse, f"resp_{turn.id}", None) is None
