"""What an open stream holds: its conversation, and not the bytes in which that came."""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.frontend.frontend_fakes import MODEL, FakeGateway, Step, finish, serving, text

SIZE = 8_000_000
SAID = "a" * SIZE
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": SAID}]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": SAID}]},
    "/v1/responses": {"store": False, "input": SAID, "text": {"verbosity": "low"}, "tool_choice": "auto"},
}


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_does_not_keep_its_request_body(path: str) -> None:
    body = json.dumps({"model": MODEL, "stream": True, **STREAMS[path]}).encode()
    gate = asyncio.Event()

    def steps() -> list[Step]:
        return [[*text(0, "Hello")], gate, [finish(1)]]

    async with serving(FakeGateway(steps)) as served, ClientSession(served.url) as http:
        before, _ = tracemalloc.get_traced_memory()
        async with http.post(path, data=body) as response:
            assert response.status == 200
            await response.content.readany()
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
            gate.set()
            await response.read()
    assert SIZE < held - before < 1.5 * SIZE
