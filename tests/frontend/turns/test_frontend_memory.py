"""What an open stream holds: its conversation, and not the bytes in which that came. After its end,
nothing."""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.frontend.hosted.rounds import FIRST, LAST, SEARCH, Rounds, hosted
from tests.kit.events import Step, finish, text
from tests.kit.frontend import MODEL, FakeGateway, serving
from tests.kit.waiting import eventually

SIZE = 8_000_000
SAID = "a" * SIZE
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": SAID}]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": SAID}]},
    "/v1/responses": {
        "store": False,
        "input": SAID,
        "text": {"verbosity": "low"},
        "tool_choice": "auto",
    },
}


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("path", STREAMS)
async def test_stream_does_not_keep_its_request_body(path: str) -> None:
    body = json.dumps({"model": MODEL, "stream": True, **STREAMS[path]}).encode()
    gate = asyncio.Event()

    def steps() -> list[Step]:
        return [[*text(0, "Hello")], gate, [finish(1)]]

    async with serving(FakeGateway(steps)) as served, ClientSession(served.url) as http:
        before = traced_bytes()
        async with http.post(path, data=body) as response:
            assert response.status == 200
            await response.content.readany()
            # The thread that parsed the body lets go of it when it gets the interpreter again:
            # maybe after this.
            await eventually(lambda: SIZE < traced_bytes() - before < 1.5 * SIZE)
            gate.set()
            await response.read()


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def freed(
    http: ClientSession, gateway: FakeGateway, path: str, request: dict[str, Any]
) -> None:
    """Sends a request of 8 MB, and waits until it is answered and freed."""
    body = json.dumps({"model": MODEL, **request}).encode()
    before = tracemalloc.get_traced_memory()[0]
    async with http.post(path, data=body) as response:
        assert response.status == 200
        await response.read()
    gateway.turns.clear()
    await eventually(lambda: tracemalloc.get_traced_memory()[0] - before < SIZE / 2)


@pytest.mark.usefixtures("traced", "no_collector")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", STREAMS)
async def test_answered_request_is_freed_without_the_garbage_collector(
    path: str, *, stream: bool
) -> None:
    gateway = FakeGateway()
    async with serving(gateway) as served, ClientSession(served.url) as http:
        await freed(http, gateway, path, {**STREAMS[path], "stream": stream})


@pytest.mark.usefixtures("traced", "no_collector")
@pytest.mark.parametrize("stream", [True, False])
async def test_answer_with_a_search_is_freed_without_the_garbage_collector(*, stream: bool) -> None:
    gateway = Rounds(FIRST, LAST)
    async with hosted(gateway) as (served, _), ClientSession(served.url) as http:
        request = {**STREAMS["/v1/messages"], "tools": [SEARCH], "stream": stream}
        await freed(http, gateway, "/v1/messages", request)


@pytest.mark.usefixtures("traced", "no_collector")
async def test_closed_connection_is_freed_without_the_garbage_collector() -> None:
    frame = json.dumps({"type": "response.create", "model": MODEL, "input": SAID, "store": False})
    gateway = FakeGateway()
    async with serving(gateway) as served, ClientSession(served.url) as http:
        before = tracemalloc.get_traced_memory()[0]
        async with http.ws_connect("/v1/responses", max_msg_size=0) as connection:
            await connection.send_str(frame)
            while json.loads((await connection.receive()).data)["type"] != "response.completed":
                pass
        gateway.turns.clear()
        await eventually(lambda: tracemalloc.get_traced_memory()[0] - before < SIZE / 2)
