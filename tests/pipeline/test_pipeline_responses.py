"""Stored and background Responses on real processes: two frontends, one that is killed, one that is told to go."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.conftest import NatsServer
from tests.pipeline.client import say
from tests.pipeline.stack import MODEL, Child, Stack

QUICK = say("Hm.\n</think>\n\nHello there.")
LONG = say("Hm.\n</think>\n\nIt begins.\n\n[[delay 20]][[fill 400]]")


@pytest.fixture(scope="module")
def shared_stack(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Two frontends over one of each other stage, quick to notice a death."""
    directory = tmp_path_factory.mktemp("shared")
    running = Stack(make_nats(), demo_model, directory, beat_interval_s=0.25, dead_after_s=1.5)
    try:
        running.start_all(frontend={"response_store": "shared"})
        yield running
    finally:
        running.stop()


@pytest.fixture
def frontends(shared_stack: Stack) -> list[Child]:
    """Two living ones, whatever the last test did."""
    while len(shared_stack.of("frontend")) < 2:
        shared_stack.start("frontend", response_store="shared", drain_s=20)
    living = shared_stack.of("frontend")
    for frontend in living:
        shared_stack.url = frontend.url
        shared_stack.wait_ready()
    return living


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def ask(http: aiohttp.ClientSession, method: str, url: str, status: int = 200, **body: Any) -> Any:
    options = {"json": body} if body else {}
    async with http.request(method, url, **options) as response:
        document = await response.json()
        assert response.status == status, document
        return document


async def until(http: aiohttp.ClientSession, url: str, *statuses: str) -> Any:
    async with asyncio.timeout(30):
        while True:
            found = await ask(http, "GET", url)
            if found["status"] in statuses:
                return found
            await asyncio.sleep(0.02)


async def test_any_frontend_goes_on_from_any_response(frontends: list[Child], http: aiohttp.ClientSession) -> None:
    previous: dict[str, str] = {}
    for number in range(4):
        url = f"{frontends[number % 2].url}/v1/responses"
        made = await ask(http, "POST", url, model=MODEL, input=QUICK, **previous)
        assert made["output"][-1]["content"][0]["text"] == "Hello there."
        previous = {"previous_response_id": made["id"]}
    one, other = [
        await ask(http, "POST", f"{frontend.url}/v1/responses/input_tokens", model=MODEL, input="x", **previous)
        for frontend in frontends
    ]
    assert one == other
    assert one["input_tokens"] > made["usage"]["input_tokens"]


async def test_a_killed_frontend_takes_its_background_responses_with_it(
    frontends: list[Child], http: aiohttp.ClientSession
) -> None:
    doomed, survivor = frontends
    made = await ask(http, "POST", f"{doomed.url}/v1/responses", model=MODEL, input=LONG, background=True)
    kept = await ask(http, "POST", f"{doomed.url}/v1/responses", model=MODEL, input=QUICK)
    url = f"{survivor.url}/v1/responses/{made['id']}"
    await until(http, url, "in_progress")
    doomed.kill()
    failed = await until(http, url, "failed")
    assert failed["error"]["message"] == "The server that ran this response is gone."
    assert (await ask(http, "GET", f"{survivor.url}/v1/responses/{kept['id']}"))["status"] == "completed"


async def test_a_frontend_that_is_told_to_go_ends_its_background_responses_first(
    frontends: list[Child], http: aiohttp.ClientSession
) -> None:
    leaver, survivor = frontends
    made = await ask(http, "POST", f"{leaver.url}/v1/responses", model=MODEL, input=LONG, background=True)
    url = f"{survivor.url}/v1/responses/{made['id']}"
    await until(http, url, "in_progress")
    leaver.terminate()
    assert await asyncio.to_thread(leaver.wait) == 0
    ended = await ask(http, "GET", url)
    assert ended["status"] == "completed"
    assert len(ended["output"][-1]["content"][0]["text"].split()) > 100


async def test_what_is_cancelled_elsewhere_ends_in_the_engine(
    frontends: list[Child], http: aiohttp.ClientSession, shared_stack: Stack
) -> None:
    one, other = frontends
    made = await ask(http, "POST", f"{one.url}/v1/responses", model=MODEL, input=LONG, background=True)
    await until(http, f"{other.url}/v1/responses/{made['id']}", "in_progress")
    cancelled = await ask(http, "POST", f"{other.url}/v1/responses/{made['id']}/cancel")
    assert cancelled["status"] == "cancelled"
    async with asyncio.timeout(10):
        while "worker.cancelled" not in shared_stack.of("worker")[0].text():
            await asyncio.sleep(0.02)
