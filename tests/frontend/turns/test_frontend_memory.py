"""What an open stream holds: its conversation, and not the bytes in which that came."""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.events import finish, text
from tests.kit.frontend import ASK, MODEL, FakeGateway, serving
from tests.kit.waiting import eventually

SIZE = 4_000_000
SAID = [{"role": "user", "content": "a" * SIZE}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {**ASK, "messages": SAID},
    "/v1/responses": {"model": MODEL, "store": False, "input": SAID},
}


@pytest.fixture
def traced() -> Iterator[None]:
    gc.freeze()  # the objects of all other tests: a collection would take long
    tracemalloc.start()
    yield
    tracemalloc.stop()


def traced_bytes() -> int:
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("path", BODIES)
async def test_stream_does_not_keep_its_request_body(path: str) -> None:
    body = json.dumps({**BODIES[path], "stream": True}).encode()
    gate = asyncio.Event()
    gateway = FakeGateway(lambda: [text(0, "Hello"), gate, [finish(1)]])
    async with serving(gateway) as served:
        gc.collect()
        before = traced_bytes()

        def holds_the_conversation() -> bool:
            gc.collect()
            return SIZE < traced_bytes() - before < 1.5 * SIZE

        async with served.http.post(path, data=body) as response:
            assert response.status == 200
            await response.content.readany()
            # The thread that parsed the body lets go of it when it gets the interpreter again:
            # maybe after this.
            await eventually(holds_the_conversation)
            gate.set()
            await response.read()
