"""Tests background responses: polling, following, cancelling, limits, and the end of the
process."""

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import structlog

from schemas.control import ModelCard
from schemas.errors import ContextOverflow
from schemas.events import BlockStart, Delta
from services.frontend.apis.responses.state.accepted_request import AcceptedRequest
from services.frontend.stored.memory import MemoryStore
from services.runtime.config.frontend import FrontendConfig
from tests.frontend.responses.responses_client import Client, keyed, types
from tests.kit.bodies import MODEL
from tests.kit.events import Step, call, finish, text
from tests.kit.every import Cases
from tests.kit.frontend import KEY, FakeGateway, Served, guarded, serving
from tests.kit.waiting import LIMIT_S, eventually


@pytest.fixture
def go() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def gateway(go: asyncio.Event) -> FakeGateway:
    """Its model writes something, waits for `go`, and writes the rest."""
    rest = [*call(1, "look", "{}", call_id="call_1"), finish(2)]
    return FakeGateway(lambda: [[*text(0, "So far")], go, rest])


@pytest.fixture
def config() -> FrontendConfig:
    return FrontendConfig(max_background=2)


async def start(client: Client, **body: Any) -> str:
    """The id of a new response in the background."""
    made = await client.create(background=True, **body)
    id: str = made["id"]
    return id


async def test_dropped_tools_are_named_in_the_notes_header(
    served: Served, go: asyncio.Event
) -> None:
    go.set()
    odd = [{"type": "x\r\nset-cookie: a=b\u2028é"}, *({"type": f"hosted_{n}"} for n in range(100))]
    body = {"model": MODEL, "input": "hi", "background": True, "tools": odd}
    reply = await served.post("/v1/responses", body)
    named = ["xset-cookieab", *(f"hosted_{number}" for number in range(15))]
    assert reply.headers["x-turnwire-dropped"].split(",") == named
    assert "set-cookie" not in reply.headers


REFUSED: list[dict[str, Any]] = [
    {"tools": [{"type": "custom", "name": "look"}], "tool_choice": "required"},
    {"input": [{"role": "user", "content": "a"}] * 5},
    {"model": "other"},
    {"model": "nowhere"},
]


async def test_what_is_refused_at_once_is_refused_in_the_background_too(
    tmp_path: Path, cases: Cases
) -> None:
    config = guarded(tmp_path, f"models={MODEL},plain", max_messages=4)
    gateway = FakeGateway(cards=[ModelCard(name, max_model_len=1000) for name in (MODEL, "other")])
    async with serving(gateway, config, headers=KEY) as served:
        for fields in REFUSED:
            with cases.case(str(fields)[:60]):
                body = {"model": MODEL, "input": "hi"} | fields
                now = await served.post("/v1/responses", body)
                later = await served.post("/v1/responses", body | {"background": True})
                assert (now.status, now.json) == (later.status, later.json)
                assert 400 <= now.status < 500
                assert gateway.turns == []


async def test_response_is_queued_runs_and_is_stored(client: Client, go: asyncio.Event) -> None:
    made = await client.create(background=True, metadata={"k": "v"})
    shown = {"status": "queued", "output": [], "background": True, "metadata": {"k": "v"}}
    assert made.items() >= shown.items()
    await client.until(made["id"], "in_progress")
    items = await client.get(made["id"], "/input_items")
    assert [item["role"] for item in items["data"]] == ["user"]
    error = await client.refuse(previous_response_id=made["id"])
    assert error["message"] == f"The response with id '{made['id']}' has not ended yet."
    go.set()
    ended = await client.until(made["id"], "completed")
    assert types(ended["output"]) == ["message", "function_call"]
    assert ended["usage"]["output_tokens"] == 74
    assert await client.get(made["id"], "/input_items") == items
    going_on = await client.create(previous_response_id=made["id"], background=False)
    assert going_on["status"] == "completed"
    assert await client.ask("POST", f"/{made['id']}/cancel") == ended, "it had ended"


async def test_running_response_can_be_followed_from_any_event(
    client: Client, served: Served, go: asyncio.Event
) -> None:
    id = await start(client)
    first = asyncio.create_task(client.replay(id))
    job = served.responses.background.find(id, None)
    assert job is not None
    await eventually(lambda: len(job.payloads) >= 5)
    later = asyncio.create_task(client.replay(id, 2))
    assert not first.done()
    go.set()
    events = await first
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    assert await later == events[3:]
    assert await client.replay(id) == events


async def test_stream_over_the_buffer_is_replayed_to_its_reader(go: asyncio.Event) -> None:
    long: list[Step] = [[Delta(0, at << 16, "x" * (1 << 16))] for at in range(64)]
    gateway = FakeGateway(lambda: [[BlockStart(0, "text")], *long, go, [finish(1)]])
    async with serving(gateway, FrontendConfig(max_buffered_bytes=1 << 16)) as served:
        client = Client(served)
        id = await start(client)
        job = served.responses.background.find(id, None)
        assert job is not None
        await eventually(lambda: sum(map(len, job.payloads)) >= len(long) << 16)
        late = asyncio.create_task(client.replay(id))
        await asyncio.sleep(0)
        go.set()
        followed = await asyncio.wait_for(late, LIMIT_S)
        assert followed[-1]["type"] == "response.completed"
        await job.wait()
        assert await client.replay(id) == followed


async def test_hangup_of_a_follower_does_not_end_the_response(
    client: Client, served: Served, go: asyncio.Event
) -> None:
    body = {"model": MODEL, "input": "hi", "background": True, "stream": True}
    async with served.http.post("/v1/responses", json=body) as response:
        await response.content.readuntil(b"response.output_text.delta")
    go.set()
    (turn,) = served.gateway.turns
    await client.until(f"resp_{turn.id}", "completed")
    assert turn.cancelled == []


async def test_cancelling_or_deleting_stops_the_turn(client: Client, served: Served) -> None:
    id = await start(client)
    follower = asyncio.create_task(client.replay(id))
    await client.until(id, "in_progress")
    cancelled = await client.ask("POST", f"/{id}/cancel")
    assert (cancelled["id"], cancelled["status"]) == (id, "cancelled")
    assert served.gateway.turns[0].cancelled == ["hangup"]
    # The output so far stays, and followers receive the end.
    kind = "response.output_item.done"
    result = [event["item"] for event in await follower if event["type"] == kind]
    assert result == cancelled["output"]
    assert [item["content"][0]["text"] for item in result] == ["So far"]
    assert (await client.ask("POST", f"/{id}/cancel"))["status"] == "cancelled"
    assert (await client.get(id))["status"] == "cancelled"
    deleted = await start(client)
    await client.until(deleted, "in_progress")
    await client.ask("DELETE", f"/{deleted}")
    assert served.gateway.turns[1].cancelled == ["hangup"]
    await client.refused("GET", f"/{deleted}", 404)
    assert len(served.responses.background) == 0


async def test_responses_beyond_the_limits_wait_or_are_refused(
    client: Client, gateway: FakeGateway, go: asyncio.Event
) -> None:
    ids = [await start(client) for _ in range(4)]
    for id in ids[:2]:
        await client.until(id, "in_progress")
    for id in ids[2:]:
        assert (await client.get(id))["status"] == "queued"
    error = await client.refuse(status=429, background=True)
    assert error["code"] == "rate_limit_exceeded"
    waiting = await client.ask("POST", f"/{ids[3]}/cancel")
    assert (waiting["status"], waiting["output"]) == ("cancelled", [])
    go.set()
    for id in ids[:3]:
        await client.until(id, "completed")
    assert len(gateway.turns) == 3


async def test_failed_response_is_stored_as_failed(client: Client, gateway: FakeGateway) -> None:
    gateway.refusal = ContextOverflow("too long", code="context_length_exceeded")
    id = await start(client)
    failed = await client.until(id, "failed")
    assert failed["error"]["code"] == "context_length_exceeded"
    events = await client.replay(id)
    assert [events[0]["type"], events[-1]["type"]] == ["response.created", "response.failed"]


@pytest.mark.parametrize("failing", [(MemoryStore, "put"), (AcceptedRequest, "record")])
async def test_response_that_cannot_be_stored_ends(
    failing: tuple[type, str],
    client: Client,
    served: Served,
    go: asyncio.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    following = asyncio.create_task(client.stream(background=True))
    await eventually(lambda: bool(served.gateway.turns))
    id = f"resp_{served.gateway.turns[0].id}"
    job = served.responses.background.find(id, None)
    assert job is not None
    waiting = asyncio.create_task(job.wait())
    monkeypatch.setattr(*failing, MagicMock(side_effect=MemoryError))
    go.set()
    followed = await asyncio.wait_for(following, LIMIT_S)
    assert followed[-1]["type"] == "response.completed"
    assert await asyncio.wait([waiting], timeout=LIMIT_S) == ({waiting}, set())
    assert (waiting.exception() is None) == (failing[1] == "put")
    assert len(served.responses.background) == 0
    await client.refused("GET", f"/{id}", 404)
    logged = [line["event"] for line in served.lines]
    assert logged.count("responses.background_failed") == 1


async def test_response_over_the_time_limit_fails(gateway: FakeGateway) -> None:
    async with serving(gateway, FrontendConfig(request_timeout_s=0.2)) as served:
        client = Client(served)
        failed = await client.until(await start(client), "failed")
        assert "longer than this server allows" in failed["error"]["message"]
        assert gateway.turns[0].cancelled == ["timeout"]


async def test_response_counts_as_an_open_request_of_its_key(
    gateway: FakeGateway, go: asyncio.Event
) -> None:
    async with serving(gateway, FrontendConfig(key_concurrency=1)) as served:
        client = Client(served)
        id = await start(client)
        await client.refuse(status=429, background=True)
        go.set()
        await client.until(id, "completed")
        await client.create()


async def test_drain_waits_for_responses(client: Client, served: Served, go: asyncio.Event) -> None:
    id = await start(client)
    await client.until(id, "in_progress")
    draining = asyncio.create_task(served.responses.drain())
    await asyncio.sleep(0)
    await client.refuse(status=503, background=True)
    assert not draining.done()
    go.set()
    await asyncio.wait_for(draining, LIMIT_S)
    assert (await client.get(id))["status"] == "completed"


async def test_cancelled_drain_fails_the_remaining_responses(
    client: Client, served: Served
) -> None:
    ids = [await start(client) for _ in range(3)]
    await client.until(ids[1], "in_progress")
    draining = asyncio.create_task(served.responses.drain())
    await asyncio.sleep(0)
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)
    for id in ids:
        failed = await client.get(id)
        assert failed["status"] == "failed"
        assert failed["error"]["message"] == "This server was shut down."
    assert [turn.cancelled for turn in served.gateway.turns] == [["hangup"], ["hangup"]]


async def test_waiting_job_of_a_removed_key_is_refused(
    tmp_path: Path, gateway: FakeGateway, go: asyncio.Event
) -> None:
    """The key is checked when the job's time has come. Other tenants do not see it."""
    config = keyed(tmp_path, "ada", "bob", max_background=1)
    async with serving(gateway, config) as served:
        ada, bob = Client(served, "ada"), Client(served, "bob")
        await start(ada)
        id = await start(ada)
        for method, path in (("GET", "?stream=true"), ("POST", "/cancel"), ("DELETE", "")):
            await bob.refused(method, f"/{id}{path}", 404)
        keyed(tmp_path, "bob")
        served.callers.reload(structlog.get_logger())
        job = served.responses.background.find(id, "ada")
        assert job is not None
        go.set()
        ended = await job.wait()
        assert b"not valid any more" in bytes(ended.response)
        assert len(gateway.turns) == 1
        await eventually(served.none_open)
