"""Tests background responses: polling, following, cancelling, limits, and the end of the
process."""

import asyncio
import functools
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from schemas.control import ModelCard
from schemas.errors import ContextOverflow, ErrorInfo, ErrorKind, NotFound, Overloaded
from schemas.events import Failed
from services.frontend.apis.responses.state.server import ResponsesServer
from services.runtime.config import FrontendConfig
from tests.frontend.responses.responses_client import Client, events_of
from tests.kit.events import Step, call, finish, text
from tests.kit.frontend import MODEL, FakeGateway, Served, serving


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
async def served(script: Script) -> AsyncIterator[Served]:
    async with serving(FakeGateway(script.steps), FrontendConfig(max_background=2)) as running:
        yield running


@pytest.fixture
async def client(served: Served) -> AsyncIterator[Client]:
    async with ClientSession() as http:
        yield Client(http, served)


async def until(client: Client, id: str, *statuses: str) -> dict[str, Any]:
    """Polls a response until it has one of the statuses."""
    async with asyncio.timeout(60):
        while True:
            found: dict[str, Any] = await client.ask("GET", f"/{id}")
            if found["status"] in statuses:
                return found


@pytest.mark.parametrize("stream", [False, True])
async def test_dropped_tools_are_named_in_the_notes_header(
    client: Client, served: Served, script: Script, stream: bool
) -> None:
    script.go.set()
    odd = [
        {"type": "x\r\nset-cookie: a=b\u2028é"},
        *({"type": f"hosted_{number}"} for number in range(100)),
    ]
    body = {"model": MODEL, "input": "hi", "background": True, "stream": stream, "tools": odd}
    async with ClientSession() as http, http.post(client.url, json=body) as response:
        assert response.status == 200
        await response.read()
        left_out = response.headers["x-turnwire-dropped-tools"].split(",")
        assert left_out == ["xset-cookieab", *(f"hosted_{number}" for number in range(15))]
        assert "set-cookie" not in response.headers


async def test_missing_model_is_refused(client: Client) -> None:
    error = await client.refused("POST", json={"input": "hi", "background": True})
    assert (error["param"], error["code"]) == ("model", "missing_required_parameter")


LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
DEEP: dict[str, Any] = functools.reduce(
    lambda inner, _: {"type": "array", "items": inner}, range(12), {}
)


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [LOOK]},
        {"tools": [{"type": "custom", "name": "look"}], "tool_choice": "required"},
        {"input": [{"role": "user", "content": "a"}] * 5},
        {
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": "http://h/a.png"}] * 3,
                }
            ]
        },
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": DEEP}}},
        {"chat_template_kwargs": DEEP},
        {"model": "other"},
        {"model": "nowhere"},
        {"model": ""},
    ],
    ids=str,
)
async def test_what_is_refused_at_once_is_refused_in_the_background_too(
    body: dict[str, Any], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"ci:{hashlib.sha256(b'k').hexdigest()} models={MODEL},plain\n")
    config = FrontendConfig(api_keys_file=str(keys), max_messages=4, max_media=2, max_nesting=10)
    gateway = FakeGateway(cards=[ModelCard(name, max_model_len=1000) for name in (MODEL, "other")])
    answers = []
    async with serving(gateway, config) as served, ClientSession(served.url) as http:
        for background in (False, True):
            request = {"model": MODEL, "input": "hi", "background": background, **body}
            async with http.post(
                "/v1/responses", json=request, headers={"x-api-key": "k"}
            ) as response:
                answers.append((response.status, await response.json()))
    assert answers[0] == answers[1]
    assert 400 <= answers[0][0] < 500
    assert gateway.turns == []


async def test_response_is_queued_runs_and_is_stored(client: Client, script: Script) -> None:
    made = await client.create(background=True, metadata={"k": "v"})
    assert (made["status"], made["output"], made["background"], made["metadata"]) == (
        "queued",
        [],
        True,
        {"k": "v"},
    )
    running = await until(client, made["id"], "in_progress")
    assert running["id"] == made["id"]
    items = await client.ask("GET", f"/{made['id']}/input_items")
    assert [item["role"] for item in items["data"]] == ["user"]
    script.go.set()
    ended = await until(client, made["id"], "completed")
    assert [item["type"] for item in ended["output"]] == ["message", "function_call"]
    assert ended["usage"]["output_tokens"] == 74
    assert await client.ask("GET", f"/{made['id']}/input_items") == items
    going_on = await client.create(previous_response_id=made["id"], background=False)
    assert going_on["status"] == "completed"


async def test_running_response_cannot_be_continued(client: Client, script: Script) -> None:
    made = await client.create(background=True)
    error = await client.refused(
        "POST", json={"model": MODEL, "input": "x", "previous_response_id": made["id"]}
    )
    assert error["message"] == f"The response with id '{made['id']}' has not ended yet."
    script.go.set()
    await until(client, made["id"], "completed")


async def test_running_response_can_be_followed_from_any_event(
    client: Client, served: Served, script: Script
) -> None:
    made = await client.create(background=True)
    first = asyncio.create_task(client.stream("GET", f"/{made['id']}?stream=true"))
    async with asyncio.timeout(60):
        job = served.responses.background.find(made["id"], None)
        assert job is not None
        while len(job.payloads) < 5:
            await asyncio.sleep(0)
    later = asyncio.create_task(client.stream("GET", f"/{made['id']}?stream=true&starting_after=2"))
    assert not first.done()
    script.go.set()
    events = await first
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    assert await later == events[3:]
    assert await client.stream("GET", f"/{made['id']}?stream=true") == events


async def test_hangup_of_a_follower_does_not_end_the_response(
    served: Served, script: Script
) -> None:
    async with ClientSession() as http:
        client = Client(http, served)
        body = {"model": MODEL, "input": "hi", "background": True, "stream": True}
        async with http.post(client.url, json=body) as response:
            await response.content.readuntil(b"response.output_text.delta")
            id = f"resp_{served.gateway.turns[0].id}"
        script.go.set()
        assert (await until(client, id, "completed"))["status"] == "completed"
        assert served.gateway.turns[0].cancelled == []
        async with http.post(client.url, json=body) as response:
            events = events_of(await response.text())
        assert [event["type"] for event in events[:2]] == [
            "response.created",
            "response.in_progress",
        ]
        assert events[-1]["type"] == "response.completed"


async def test_cancelling_stops_the_turn(client: Client, served: Served) -> None:
    made = await client.create(background=True)
    follower = asyncio.create_task(client.stream("GET", f"/{made['id']}?stream=true"))
    await until(client, made["id"], "in_progress")
    cancelled = await client.ask("POST", f"/{made['id']}/cancel")
    assert (cancelled["id"], cancelled["status"]) == (made["id"], "cancelled")
    assert served.gateway.turns[0].cancelled == ["hangup"]
    # The output so far stays, and followers receive the end.
    result = [
        event["item"] for event in await follower if event["type"] == "response.output_item.done"
    ]
    assert result == cancelled["output"]
    assert [item["content"][0]["text"] for item in result] == ["So far"]
    for again in (("POST", f"/{made['id']}/cancel"), ("GET", f"/{made['id']}")):
        assert (await client.ask(*again))["status"] == "cancelled"
    assert len(served.responses.background) == 0


async def test_cancelling_an_ended_response_returns_it(client: Client, script: Script) -> None:
    script.go.set()
    made = await client.create(background=True)
    ended = await until(client, made["id"], "completed")
    assert await client.ask("POST", f"/{made['id']}/cancel") == ended


async def test_deleting_stops_the_response(client: Client, served: Served) -> None:
    made = await client.create(background=True)
    await until(client, made["id"], "in_progress")
    assert (await client.ask("DELETE", f"/{made['id']}"))["deleted"] is True
    assert served.gateway.turns[0].cancelled == ["hangup"]
    await client.refused("GET", f"/{made['id']}", 404)


async def test_responses_beyond_the_limits_wait_or_are_refused(
    client: Client, served: Served, script: Script
) -> None:
    made = [await client.create(background=True) for _ in range(4)]
    for id in (made[0]["id"], made[1]["id"]):
        await until(client, id, "in_progress")
    assert [(await client.ask("GET", f"/{one['id']}"))["status"] for one in made[2:]] == [
        "queued",
        "queued",
    ]
    error = await client.refused(
        "POST", status=429, json={"model": MODEL, "input": "x", "background": True}
    )
    assert error["code"] == "rate_limit_exceeded"
    waiting = await client.ask("POST", f"/{made[3]['id']}/cancel")
    assert (waiting["status"], waiting["output"]) == ("cancelled", [])
    script.go.set()
    for one in made[:3]:
        await until(client, one["id"], "completed")
    assert len(served.gateway.turns) == 3


async def test_prompt_that_exceeds_the_window_fails_with_its_code(
    client: Client, served: Served
) -> None:
    served.gateway.refusal = ContextOverflow(
        "too long", param="messages", code="context_length_exceeded"
    )
    made = await client.create(background=True)
    failed = await until(client, made["id"], "failed")
    assert failed["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("early", [True, False])
async def test_failed_response_is_stored_as_failed(
    client: Client, served: Served, early: bool
) -> None:
    if early:
        served.gateway.refusal = Overloaded("Every worker is busy.")
    else:
        served.gateway.steps = lambda: [
            [*text(0, "So")],
            [Failed(ErrorInfo(ErrorKind.ENGINE, "The engine failed."))],
        ]
    made = await client.create(background=True)
    failed = await until(client, made["id"], "failed")
    assert failed["error"]["message"] in ("Every worker is busy.", "The engine failed.")
    events = await client.stream("GET", f"/{made['id']}?stream=true")
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.failed"


async def test_invalid_request_is_refused_at_once(client: Client, served: Served) -> None:
    error = await client.refused(
        "POST", status=404, json={"model": "none", "input": "x", "background": True}
    )
    assert error["code"] == "model_not_found"
    assert len(served.responses.background) == 0
    assert len(served.responses.store) == 0


async def test_response_over_the_time_limit_fails(script: Script) -> None:
    config = FrontendConfig(request_timeout_s=0.2)
    async with serving(FakeGateway(script.steps), config) as served, ClientSession() as http:
        client = Client(http, served)
        made = await client.create(background=True)
        failed = await until(client, made["id"], "failed")
        assert "longer than this server allows" in failed["error"]["message"]
        assert served.gateway.turns[0].cancelled == ["timeout"]


async def test_other_tenants_cannot_see_the_response(tmp_path: Path, script: Script) -> None:
    keys = tmp_path / "keys"
    keys.write_text(
        "".join(f"{name}:{hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("ada", "bob"))
    )
    config = FrontendConfig(api_keys_file=str(keys))
    async with serving(FakeGateway(script.steps), config) as served, ClientSession() as http:
        ada, bob = Client(http, served, "ada"), Client(http, served, "bob")
        made = await ada.create(background=True)
        for method, path in (
            ("GET", ""),
            ("GET", "?stream=true"),
            ("POST", "/cancel"),
            ("DELETE", ""),
        ):
            await bob.refused(method, f"/{made['id']}{path}", 404)
        assert (await ada.ask("GET", f"/{made['id']}"))["status"] in ("queued", "in_progress")


async def test_response_counts_as_an_open_request_of_its_key(
    tmp_path: Path, script: Script
) -> None:
    async with (
        serving(FakeGateway(script.steps), FrontendConfig(key_concurrency=1)) as served,
        ClientSession() as http,
    ):
        client = Client(http, served)
        made = await client.create(background=True)
        await client.refused(
            "POST", status=429, json={"model": MODEL, "input": "x", "background": True}
        )
        script.go.set()
        await until(client, made["id"], "completed")
        await client.create()


async def test_drain_waits_for_responses(client: Client, served: Served, script: Script) -> None:
    made = await client.create(background=True)
    await until(client, made["id"], "in_progress")
    draining = asyncio.create_task(served.responses.drain())
    await asyncio.sleep(0)
    await client.refused(
        "POST", status=503, json={"model": MODEL, "input": "x", "background": True}
    )
    assert not draining.done()
    script.go.set()
    await asyncio.wait_for(draining, 60)
    assert (await client.ask("GET", f"/{made['id']}"))["status"] == "completed"


async def test_cancelled_drain_fails_the_remaining_responses(
    client: Client, served: Served
) -> None:
    made = [await client.create(background=True) for _ in range(3)]
    await until(client, made[1]["id"], "in_progress")
    draining = asyncio.create_task(served.responses.drain())
    await asyncio.sleep(0)
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)
    for one in made:
        failed = await client.ask("GET", f"/{one['id']}")
        assert (failed["status"], failed["error"]["message"]) == (
            "failed",
            "This server was shut down.",
        )
    assert [turn.cancelled for turn in served.gateway.turns] == [["hangup"], ["hangup"]]


async def test_shutdown_ends_responses_that_were_not_drained(script: Script) -> None:
    responses: ResponsesServer
    async with serving(FakeGateway(script.steps)) as served, ClientSession() as http:
        made = await Client(http, served).create(background=True)
        responses = served.responses
    assert len(responses.background) == 0
    kept = await responses.store.get(made["id"], None)
    assert kept is not None
    assert json.loads(bytes(kept.response))["status"] == "failed"


async def test_internal_error_fails_only_its_response(client: Client, served: Served) -> None:
    def broken() -> list[Step]:
        raise RuntimeError("a bug")

    served.gateway.steps = broken
    made = await client.create(background=True)
    failed = await until(client, made["id"], "failed")
    assert failed["error"] == {"code": "server_error", "message": "Internal server error"}
    assert any(line["event"] == "responses.background_failed" for line in served.lines)


async def test_response_of_a_removed_model_fails(
    client: Client, served: Served, script: Script
) -> None:
    made = [await client.create(background=True) for _ in range(3)]
    served.gateway.refusal = NotFound(f"model: {MODEL}")
    script.go.set()
    failed = await until(client, made[2]["id"], "failed")
    assert failed["error"]["code"] == "invalid_prompt"
