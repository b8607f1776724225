"""Engine errors, slow readers, hang-ups and malformed input: a turn ends with one clear error, and
others go on."""

import asyncio
import json
import math
import socket
import time
from typing import Any

import msgspec
import nats as nats_library
import pytest

from schemas import subjects
from schemas.frames import TokenFrame
from tests.kit.messages_client import Client, body, events, say
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack
from tests.kit.waiting import LIMIT_S, eventually

TRIES = 20
"""A latency is the best of this many tries: on a busy machine any single one is late."""


async def test_an_engine_error_during_a_stream_is_one_error_event(client: Client) -> None:
    others = asyncio.create_task(
        client.stream(body(say("Hm.\n</think>\n\n[[delay 5]][[fill 60]]")))
    )
    output = "Hm.\n</think>\n\nOne two [[pause 100]][[fail CUDA error]] three"
    async with client.http.post(f"{client.url}/v1/messages", json=body(say(output))) as response:
        got = [event async for event in events(response)]
    assert got[-1].name == "error"
    assert [e.name for e in got].count("error") == 1
    status, error = await client.post("/v1/messages", body(say(output), stream=False))
    assert (status, error["type"], error["error"]["type"]) == (500, "error", "api_error")
    assert (await others).error is None


class Tap:
    """Follows the token frames on the bus."""

    def __init__(self) -> None:
        self.finished: dict[str, tuple[float, str]] = {}
        """turn → (time, finish reason)"""
        self.opened = asyncio.Event()
        """A worker has sent the parse context of a turn."""
        self.decoding = asyncio.Event()
        """A worker has sent tokens."""

    async def open(self, url: str) -> "Tap":
        self._nats = await nats_library.connect(url)

        async def frame(message: Any) -> None:
            for entry in msgspec.json.decode(message.data, type=TokenFrame).entries:
                self.opened.set()
                if entry.ids:
                    self.decoding.set()
                if entry.finish is not None:
                    self.finished[entry.turn] = (time.monotonic(), str(entry.finish.reason))

        await self._nats.subscribe(f"{subjects.PREFIX}.tok.>", cb=frame)
        await self._nats.flush()
        return self

    async def close(self) -> None:
        await self._nats.close()


@pytest.mark.parametrize("limit_s", [20.0, pytest.param(0.1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("phase", ["decode", "prefill", "document"])
async def test_a_hang_up_reaches_the_engine_at_once(
    client: Client, nats: NatsServer, phase: str, limit_s: float
) -> None:
    """A turn takes longer than the limit; within a tenth of a second it ends on an idle machine."""
    tap = await Tap().open(nats.url)
    pause = "[[pause 60000]]" if phase == "prefill" else ""
    request = body(
        say(f"{pause}Hm.\n</think>\n\n[[delay 30]][[fill 2000]]"), stream=phase != "document"
    )

    async def turn() -> None:
        async with client.http.post(f"{client.url}/v1/messages", json=request) as response:
            async for _ in response.content.iter_any():
                pass

    best = math.inf
    for _ in range(TRIES):
        reached = tap.opened if phase == "prefill" else tap.decoding
        reached.clear()
        tap.finished.clear()
        task = asyncio.create_task(turn())
        await reached.wait()
        left = time.monotonic()
        task.cancel()
        await eventually(lambda: bool(tap.finished))
        [(at, reason)] = tap.finished.values()
        assert reason == "cancelled"
        best = min(best, at - left)
        if best < limit_s:
            break
    await tap.close()
    assert best < limit_s


async def test_a_slow_reader_is_cancelled_alone(
    client: Client, stack: Stack, nats: NatsServer
) -> None:
    tap = await Tap().open(nats.url)
    port = int(stack.url.rpartition(":")[2])
    request = json.dumps(body(say("Hm.\n</think>\n\n[[fill 60000]]"))).encode()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", port))
        slow.sendall(
            b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(request) + request
        )
        await tap.decoding.wait()
        quick = await client.stream(body(say("Hm.\n</think>\n\n[[delay 5]][[fill 200]]")))
        assert quick.error is None
        async with asyncio.timeout(LIMIT_S):
            while (await client.get("/health"))[1]["turns"]:
                await asyncio.sleep(0.05)
    await tap.close()
