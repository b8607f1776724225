"""Tests background responses: polling, following, cancelling, limits, and the end of the
process."""

import asyncio
import functools
import hashlib
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import ClientSession

from schemas.control import ModelCard
from schemas.errors import ContextOverflow, ErrorInfo, ErrorKind
from schemas.events import Failed
from services.runtime.config import FrontendConfig
from tests.frontend.responses.responses_client import Client, keyed
from tests.kit.events import Step, call, finish, text
from tests.kit.every import Cases
from tests.kit.frontend import MODEL, FakeGateway, Served, serving
from tests.kit.waiting import eventually


class Script:
    """A turn that writes something, waits for `go`, and writes the rest."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    def steps(self) -> list[Step]:
        return [
            [*text(0, "So far")],
            self.go,
            [*call(1, "look", "{}", call_id="call_1"), finish(2)],
        ]


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def gateway(script: Script) -> FakeGateway:
    return FakeGateway(script.steps)


@pytest.fixture
def config() -> FrontendConfig:
    return FrontendConfig(max_background=2)


async def start(client: Client, **body: Any) -> str:
    """The id of a new response in the background."""
    made = await client.create(background=True, **body)
    id: str = made["id"]
    return id


@pytest.mark.parametrize("stream", [False, True])
async def test_dropped_tools_are_named_in_the_notes_header(
    client: Client, script: Script, http: ClientSession, stream: bool
) -> None:
    script.go.set()
    odd = [
        {"type": "x\r\nset-cookie: a=b\u2028é"},
        *({"type": f"hosted_{number}"} for number in range(100)),
    ]
    body = {"model": MODEL, "input": "hi", "background": True, "stream": stream, "tools": odd}
    async with http.post(client.url, json=body) as response:
        assert response.status == 200
        await response.read()
        left_out = response.headers["x-turnwire-dropped-tools"].split(",")
        assert left_out == ["xset-cookieab", *(f"hosted_{number}" for number in range(15))]
        assert "set-cookie" not in response.headers


CUSTOM = {"type": "custom", "name": "look"}
DEEP: dict[str, Any] = functools.reduce(
    lambda inner, _: {"type": "array", "items": inner}, range(12), {}
)
REFUSED: list[dict[str, Any]] = [
    {"tools": [CUSTOM], "tool_choice": "required"},
    {"input": [{"role": "user", "content": "a"}] * 5},
    {"text": {"format": {"type": "json_schema", "name": "a", "schema": DEEP}}},
    {"model": "other"},
    {"model": "nowhere"},
]


async def test_what_is_refused_at_once_is_refused_in_the_background_too(
    tmp_path: Path, cases: Cases
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"ci:{hashlib.sha256(b'k').hexdigest()} models={MODEL},plain\n")
    config = FrontendConfig(api_keys_file=str(keys), max_messages=4, max_nesting=10)
    gateway = FakeGateway(cards=[ModelCard(name, max_model_len=1000) for name in (MODEL, "other")])
    headers = {"x-api-key": "k"}
    async with (
        serving(gateway, config) as served,
        ClientSession(served.url, headers=headers) as http,
    ):
        for body in REFUSED:
            with cases.case(str(body)[:60]):
                answers = []
                for background in (False, True):
                    request = {"model": MODEL, "input": "hi", "background": background, **body}
                    async with http.post("/v1/responses", json=request) as response:
                        answers.append((response.status, await response.json()))
                assert answers[0] == answers[1]
                assert 400 <= answers[0][0] < 500
                assert gateway.turns == []


async def test_response_is_queued_runs_and_is_stored(client: Client, script: Script) -> None:
    made = await client.create(background=True, metadata={"k": "v"})
    shown = {"status": "queued", "output": [], "background": True, "metadata": {"k": "v"}}
    assert {name: made[name] for name in shown} == shown
    running = await client.until(made["id"], "in_progress")
    assert running["id"] == made["id"]
    items = await client.get(made["id"], "/input_items")
    assert [item["role"] for item in items["data"]] == ["user"]
    error = await client.refuse(previous_response_id=made["id"])
    assert error["message"] == f"The response with id '{made['id']}' has not ended yet."
    script.go.set()
    ended = await client.until(made["id"], "completed")
    assert [item["type"] for item in ended["output"]] == ["message", "function_call"]
    assert ended["usage"]["output_tokens"] == 74
    assert await client.get(made["id"], "/input_items") == items
    going_on = await client.create(previous_response_id=made["id"], background=False)
    assert going_on["status"] == "completed"
    cancelled = await client.ask("POST", f"/{made['id']}/cancel")
    assert cancelled == ended, "it had ended"


async def test_response_that_is_not_to_be_stored_can_be_fetched(
    client: Client, script: Script
) -> None:
    made = await client.create(background=True, store=False)
    assert (made["status"], made["store"]) == ("queued", False)
    script.go.set()
    ended = await client.until(made["id"], "completed")
    assert ended["store"] is False
    events = await client.replay(made["id"])
    assert events[-1]["type"] == "response.completed"


async def test_running_response_can_be_followed_from_any_event(
    client: Client, served: Served, script: Script
) -> None:
    id = await start(client)
    first = asyncio.create_task(client.replay(id))
    async with asyncio.timeout(60):
        job = served.responses.background.find(id, None)
        assert job is not None
        while len(job.payloads) < 5:
            await asyncio.sleep(0)
    later = asyncio.create_task(client.replay(id, 2))
    assert not first.done()
    script.go.set()
    events = await first
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    assert await later == events[3:]
    assert await client.replay(id) == events


async def test_hangup_of_a_follower_does_not_end_the_response(
    client: Client, gateway: FakeGateway, http: ClientSession, script: Script
) -> None:
    body = {"model": MODEL, "input": "hi", "background": True, "stream": True}
    async with http.post(client.url, json=body) as response:
        await response.content.readuntil(b"response.output_text.delta")
        id = f"resp_{gateway.turns[0].id}"
    script.go.set()
    await client.until(id, "completed")
    assert gateway.turns[0].cancelled == []


async def test_cancelling_stops_the_turn(client: Client, served: Served) -> None:
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
    assert len(served.responses.background) == 0


async def test_deleting_stops_the_response(client: Client, gateway: FakeGateway) -> None:
    id = await start(client)
    await client.until(id, "in_progress")
    assert (await client.ask("DELETE", f"/{id}"))["deleted"] is True
    assert gateway.turns[0].cancelled == ["hangup"]
    await client.refused("GET", f"/{id}", 404)


async def test_responses_beyond_the_limits_wait_or_are_refused(
    client: Client, gateway: FakeGateway, script: Script
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
    script.go.set()
    for id in ids[:3]:
        await client.until(id, "completed")
    assert len(gateway.turns) == 3


TOO_LONG = ContextOverflow("too long", param="messages", code="context_length_exceeded")


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (TOO_LONG, {"code": "context_length_exceeded"}),
        (None, {"message": "The engine failed."}),
    ],
)
async def test_failed_response_is_stored_as_failed(
    client: Client, gateway: FakeGateway, refusal: Any, error: dict[str, str]
) -> None:
    gateway.refusal = refusal
    failure = Failed(ErrorInfo(ErrorKind.ENGINE, "The engine failed."))
    gateway.steps = lambda: [[*text(0, "So")], [failure]]
    id = await start(client)
    failed = await client.until(id, "failed")
    assert error.items() <= failed["error"].items()
    events = await client.replay(id)
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.failed"


async def test_response_over_the_time_limit_fails(
    gateway: FakeGateway, http: ClientSession
) -> None:
    async with serving(gateway, FrontendConfig(request_timeout_s=0.2)) as served:
        client = Client(http, served)
        failed = await client.until(await start(client), "failed")
        assert "longer than this server allows" in failed["error"]["message"]
        assert gateway.turns[0].cancelled == ["timeout"]


async def test_other_tenants_cannot_see_the_response(
    tmp_path: Path, gateway: FakeGateway, http: ClientSession
) -> None:
    async with serving(gateway, keyed(tmp_path, "ada", "bob")) as served:
        ada, bob = Client(http, served, "ada"), Client(http, served, "bob")
        id = await start(ada)
        for method, path in (
            ("GET", ""),
            ("GET", "?stream=true"),
            ("POST", "/cancel"),
            ("DELETE", ""),
        ):
            await bob.refused(method, f"/{id}{path}", 404)
        assert (await ada.get(id))["status"] in ("queued", "in_progress")


async def test_response_counts_as_an_open_request_of_its_key(
    gateway: FakeGateway, http: ClientSession, script: Script
) -> None:
    async with serving(gateway, FrontendConfig(key_concurrency=1)) as served:
        client = Client(http, served)
        id = await start(client)
        await client.refuse(status=429, background=True)
        script.go.set()
        await client.until(id, "completed")
        await client.create()


async def test_drain_waits_for_responses(client: Client, served: Served, script: Script) -> None:
    id = await start(client)
    await client.until(id, "in_progress")
    draining = asyncio.create_task(served.responses.drain())
    await asyncio.sleep(0)
    await client.refuse(status=503, background=True)
    assert not draining.done()
    script.go.set()
    await asyncio.wait_for(draining, 60)
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


async def test_waiting_job_of_a_removed_key_is_refused(tmp_path: Path) -> None:
    """The key is checked when the job's time has come."""
    config = keyed(tmp_path, "ada", "bob", max_background=1)
    go = asyncio.Event()
    gateway = FakeGateway(lambda: [[*text(0, "x")], go, [finish(1)]])
    async with serving(gateway, config, headers={"authorization": "Bearer ada"}) as served:
        client = Client(served.http, served)
        await client.create(background=True)
        waiting = await client.create(background=True)
        keyed(tmp_path, "bob")
        served.callers.reload(structlog.get_logger())
        background = served.responses.background
        job = background.find(waiting["id"], "ada")
        assert job is not None
        go.set()
        ended = await job.wait()
        assert b"not valid any more" in bytes(ended.response)
        assert len(gateway.turns) == 1
        await eventually(served.none_open)
