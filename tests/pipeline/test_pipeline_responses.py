"""Stored and background Responses on two frontends, one of which is killed or drained."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kit import waiting
from tests.kit.messages_client import say
from tests.kit.stack import MODEL, Child, Stack
from tests.kit.waiting import LIMIT_S, eventually
from tests.pipeline.conftest import SHARED

QUICK = say("Hm.\n</think>\n\nHello there.")
ENDLESS = say("Hm. [[delay 2000]][[fill 400]]")
LONG = say("Hm.\n</think>\n\nIt begins.\n\n[[delay 20]][[fill 400]]")


@pytest.fixture
def frontends(own_stack: Stack) -> list[Child]:
    """Two frontends that share stored Responses."""
    first = own_stack.of("frontend")[0]
    second = own_stack.start("frontend", **SHARED)
    for frontend in (second, first):
        own_stack.url = frontend.url
        own_stack.wait_ready()
    return [first, second]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def ask(http: aiohttp.ClientSession, method: str, url: str, **body: Any) -> Any:
    async with http.request(method, url, json=body or None) as response:
        document = await response.json()
        assert response.status == 200, document
        return document


async def until(http: aiohttp.ClientSession, url: str, *statuses: str) -> Any:
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await ask(http, "GET", url)
            if found["status"] in statuses:
                return found
            await asyncio.sleep(0.02)


async def test_any_frontend_continues_any_response(
    frontends: list[Child], http: aiohttp.ClientSession
) -> None:
    previous: dict[str, str] = {}
    for number in range(4):
        url = f"{frontends[number % 2].url}/v1/responses"
        made = await ask(http, "POST", url, model=MODEL, input=QUICK, **previous)
        assert made["output"][-1]["content"][0]["text"] == "Hello there."
        previous = {"previous_response_id": made["id"]}
    one, other = [
        await ask(
            http,
            "POST",
            f"{frontend.url}/v1/responses/input_tokens",
            model=MODEL,
            input="x",
            **previous,
        )
        for frontend in frontends
    ]
    assert one == other
    assert one["input_tokens"] > made["usage"]["input_tokens"]


async def test_background_responses_of_a_killed_frontend_fail(
    frontends: list[Child], http: aiohttp.ClientSession
) -> None:
    doomed, survivor = frontends
    made = await ask(
        http, "POST", f"{doomed.url}/v1/responses", model=MODEL, input=LONG, background=True
    )
    kept = await ask(http, "POST", f"{doomed.url}/v1/responses", model=MODEL, input=QUICK)
    url, kept_url = (f"{survivor.url}/v1/responses/{one['id']}" for one in (made, kept))
    await until(http, url, "in_progress")

    async def is_stored() -> bool:
        """A frontend stores a response after its answer."""
        async with http.get(kept_url) as response:
            return response.status == 200

    await waiting.until(is_stored)
    doomed.kill()
    failed = await until(http, url, "failed")
    assert failed["error"]["message"] == "The server that ran this response is gone."
    assert (await ask(http, "GET", kept_url))["status"] == "completed"


@pytest.mark.slow
async def test_a_draining_frontend_finishes_its_background_responses(
    frontends: list[Child], http: aiohttp.ClientSession
) -> None:
    leaver, survivor = frontends
    made = await ask(
        http, "POST", f"{leaver.url}/v1/responses", model=MODEL, input=LONG, background=True
    )
    url = f"{survivor.url}/v1/responses/{made['id']}"
    await until(http, url, "in_progress")
    leaver.terminate()
    assert await asyncio.to_thread(leaver.wait) == 0
    ended = await ask(http, "GET", url)
    assert ended["status"] == "completed"
    assert len(ended["output"][-1]["content"][0]["text"].split()) > 100


async def test_a_cancel_at_another_frontend_ends_the_turn_in_the_engine(
    frontends: list[Child], http: aiohttp.ClientSession, own_stack: Stack
) -> None:
    one, other = frontends
    body = {"model": MODEL, "input": ENDLESS, "background": True, "stream": True}
    id = ""
    async with http.post(f"{one.url}/v1/responses", json=body) as stream:
        async for line in stream.content:
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                id = event["response"]["id"] if "response" in event else id
                if event["type"].endswith(".delta"):  # the worker has the turn
                    break
        cancelled = await ask(http, "POST", f"{other.url}/v1/responses/{id}/cancel")
    assert cancelled["status"] == "cancelled"
    turn = id.rpartition("_")[2]
    logs = [worker.log for worker in own_stack.of("worker")]
    await eventually(
        lambda: any("worker.cancelled" in log and turn in log for log in map(Path.read_text, logs))
    )
