"""Clients that hang up at any moment leave no traceback and no warning in the log."""

import asyncio
import json
import logging
import random
import socket
import ssl
import struct
import threading
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from services.cli.serve import new_loop
from services.frontend.http.tls import Tls
from services.runtime.observability.telemetry import adopt_library_logs
from tests.kit.certificates import Authority, pem
from tests.kit.events import finish, one_by_one, text
from tests.kit.frontend import ASKS, MODEL, STREAM, FakeGateway, log_into, serving
from tests.kit.raw_http import CHUNKED, LAST_CHUNK, chunk, frame, post, upgrade

BODY = json.dumps(STREAM).encode()
CREATE = json.dumps({"type": "response.create", "model": MODEL, "input": "hi"}).encode()
CALM = ("debug", "info")
REQUESTS: dict[str, bytes] = {
    "document": post(),
    **{
        path: post(json.dumps({**body, "stream": True}).encode(), path=path)
        for path, body in ASKS.items()
    },
    "large body": post(json.dumps({**STREAM, "system": "word " * 150_000}).encode()),
    "chunked body": post(b"", CHUNKED, sized=False) + chunk(BODY) + LAST_CHUNK,
    "waiting for the body": post(BODY, "Expect: 100-continue"),
    "refused, and another": post(b"{}") + post(),
    "socket": upgrade() + frame(CREATE),
}
TRIALS = 8
"""Hang-ups for each kind of request"""


async def hang_up(
    port: int, request: bytes, rng: random.Random, tls: ssl.SSLContext | None
) -> None:
    """Sends a part of the request or all of it, reads some of the answer, and ends the connection
    in one of the ways in which connections end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    sent = rng.choice(
        [len(request), rng.randrange(len(request) + 1), rng.randrange(min(200, len(request)))]
    )
    try:
        writer.write(request[:sent])
        if rng.random() < 0.8:
            async with asyncio.timeout(0.5):
                await writer.drain()
                for _ in range(rng.choice([0, 1, 1, 3])):
                    await reader.read(rng.choice([1, 300, 100_000]))
        await asyncio.sleep(rng.choice([0, 0, 0.001, 0.01]))
        if rng.random() < 0.2 and tls is None:
            writer.write_eof()
            await asyncio.sleep(0.001)
    except (TimeoutError, ConnectionError):
        pass
    if rng.random() < 0.5:  # a reset
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if rng.random() < 0.5:
        writer.transport.abort()
    else:
        writer.close()


@pytest.mark.parametrize("secure", [True, False])
def test_hangup_is_not_an_error(secure: bool, tmp_path: Path) -> None:
    """What libraries, the loop and the application log at `warning` or above, on the loop that
    production uses. Clients have a loop in another thread."""
    tls = client = None
    if secure:
        authority = Authority("test")
        tls = Tls(*authority.write(tmp_path, "server"), None)
        client = ssl.create_default_context(cadata=pem(authority.certificate).decode())
    rng = random.Random(f"{secure}")
    lines: list[MutableMapping[str, Any]] = []
    long = [*text(0, "word " * 100_000, pieces=50), finish(1)]

    async def hang_ups(port: int) -> None:
        async with asyncio.TaskGroup() as group:
            for request in [*REQUESTS.values()] * TRIALS:
                group.create_task(hang_up(port, request, rng, client))

    async def serve() -> None:
        async with serving(FakeGateway(lambda: one_by_one(long)), tls=tls) as served:
            await asyncio.to_thread(lambda: asyncio.run(hang_ups(served.port)))
            await asyncio.sleep(0.05)
            lines.extend(line for line in served.lines if line["log_level"] not in CALM)

    thread, root = threading.get_ident(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    adopt_library_logs(log_into(lines))
    root.handlers[0].addFilter(lambda record: record.thread == thread)
    try:
        asyncio.Runner(loop_factory=new_loop).run(serve())
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert not lines, "\n".join(map(str, lines[:3]))
