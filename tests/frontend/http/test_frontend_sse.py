"""Streams under stress: silence, hang-ups, clients that do not read, time that runs out. Real
sockets, no sleeps."""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.events import BlockStart, Delta
from services.frontend.http.sse import HIGH_WATER_BYTES, SLICE_BYTES, SseWriter
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import MODEL, messages
from tests.kit.clock import LoopClock
from tests.kit.events import Step, finish, text
from tests.kit.frontend import FakeGateway, guarded, serving
from tests.kit.raw_http import connected, post
from tests.kit.waiting import LIMIT_S, eventually

END = b'{"type":"message_stop"}\n\n\r\n0\r\n\r\n'
SO: Step = [BlockStart(0, "text"), Delta(0, 0, "so")]
ASK, STREAM = messages(), messages(stream=True)


def request_bytes(ask: dict[str, Any]) -> bytes:
    return post(json.dumps(ask).encode(), "X-Api-Key: alpha")


both_forms = pytest.mark.parametrize("ask", [ASK, STREAM], ids=["document", "stream"])


async def test_silent_stream_gets_pings_before_the_first_token_and_later() -> None:
    first, second = asyncio.Event(), asyncio.Event()
    gateway = FakeGateway(lambda: [first, SO, second, [finish(1)]])
    events: list[str] = []
    async with (
        serving(gateway, FrontendConfig(ping_interval_s=0.02)) as served,
        asyncio.timeout(LIMIT_S),
        served.http.post("/v1/messages", json=STREAM) as response,
    ):
        assert await response.content.readline() == b"event: message_start\n"
        assert b'"input_tokens":656' in await response.content.readline()
        async for line in response.content:
            if line.startswith(b"event: "):
                events.append(line.decode().strip().removeprefix("event: "))
            if events.count("ping") == 2:
                first.set()
            if events.count("ping") == 6:
                second.set()
    assert events[:2] == ["ping", "ping"]
    assert events[events.index("content_block_delta") + 1] == "ping"
    assert events[-1] == "message_stop"


@both_forms
@pytest.mark.parametrize("decoding", [False, True], ids=["prefill", "decode"])
async def test_hangup_cancels_the_turn(ask: dict[str, Any], decoding: bool, tmp_path: Path) -> None:
    gateway = FakeGateway(lambda: [text(0, "so"), asyncio.Event()])
    if not decoding:
        gateway.hold = asyncio.Event()
    async with serving(gateway, guarded(tmp_path, "concurrency=1")) as served:
        async with connected(served.port, request_bytes(ask)) as (reader, _):
            await gateway.opening.wait()
            assert served.callers.open_requests == {"alpha": 1}
            if decoding and ask is STREAM:
                await reader.readuntil(b"content_block_stop")
        await eventually(lambda: bool(gateway.turns))
        ended = gateway.turns[0].cancel_seen if decoding else gateway.open_cancelled
        await asyncio.wait_for(ended.wait(), LIMIT_S)
        await eventually(lambda: bool(served.lines))
        await eventually(served.none_open)
    assert gateway.turns[0].cancelled == (["hangup"] if decoding else [])
    assert served.lines[-1]["outcome"] == "hangup"
    assert served.registry.get_sample_value("turnwire_requests_running", {"model": MODEL}) == 0


@pytest.mark.parametrize(
    ("config", "pieces"),
    [
        (FrontendConfig(slow_reader_timeout_s=0.2), 64),
        (FrontendConfig(max_buffered_bytes=65536), 4096),
    ],
    ids=["too long", "too much"],
)
async def test_slow_reader_is_disconnected_alone(config: FrontendConfig, pieces: int) -> None:
    size = 16 * 1024
    long: list[Step] = [[Delta(0, at * size, "x" * size)] for at in range(pieces)]
    scripts: list[list[Step]] = [
        [[BlockStart(0, "text")], *long, asyncio.Event()],
        [[*text(0, "undisturbed"), finish(1)]],
    ]
    gateway = FakeGateway(lambda: scripts.pop(0))
    async with serving(gateway, config) as served:
        with socket.socket() as deaf:  # it does not read, and has as small a buffer as can be
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            deaf.connect(("127.0.0.1", served.port))
            deaf.sendall(request_bytes(STREAM))
            await eventually(lambda: bool(gateway.turns))
            other = (await served.ask(stream=True)).text
            await asyncio.wait_for(gateway.turns[0].cancel_seen.wait(), LIMIT_S)
            await eventually(lambda: len(served.lines) == 2)
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            cut = b""
            while piece := await asyncio.to_thread(deaf.recv, 1 << 20):
                cut += piece
    assert not cut.endswith(END)
    assert gateway.turns[0].cancelled[0] == "slow_reader"
    assert gateway.turns[1].cancelled == []
    assert "message_stop" in other
    assert {line["outcome"] for line in served.lines} == {"slow_reader", "stop"}


class Played:
    """A writer, and the request, response and transport to which it writes. What is written stays
    in the transport until `read` takes it."""

    def __init__(self, **config: Any) -> None:
        self.chunked = False
        self.transport = self.writer = self
        self.written = b""
        self.held = 0
        self.room = asyncio.Event()
        self.aborted = asyncio.Event()
        self.looked = 0
        self.on_look: Callable[[], None] = lambda: None
        self.slow: list[str] = []
        times = {"ping_interval_s": 9, "slow_reader_timeout_s": 9, "max_buffered_bytes": 1 << 22}
        self.sse = SseWriter(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            FrontendConfig(**{**times, **config}),
            b"ping\n",
            on_slow=lambda: self.slow.append("slow"),
        )

    def begin(self, _request: object, first: bytes) -> None:
        self.write(b"head " + first)

    def write(self, data: bytes) -> None:
        self.written += data
        self.held += len(data)

    def get_write_buffer_size(self) -> int:
        self.looked += 1
        self.on_look()
        return self.held

    async def drain(self) -> None:
        while self.held > HIGH_WATER_BYTES and not self.is_closing():
            self.room.clear()
            await self.room.wait()

    def is_closing(self) -> bool:
        return self.aborted.is_set()

    def abort(self) -> None:
        self.aborted.set()

    def read(self, size: int) -> None:
        self.held = max(0, self.held - size)
        self.room.set()


async def test_end_waits_for_the_backlog() -> None:
    played = Played()
    long = bytes(range(256)) * 1024
    played.sse.begin(b"")
    played.sse.write(long)
    played.sse.close(b"last")
    running = asyncio.create_task(played.sse.run())
    while not running.done():
        before = len(played.written)
        played.read(1 << 20)
        await asyncio.sleep(0)
        assert len(played.written) - before <= SLICE_BYTES + len(END)
    await running
    assert played.written == b"head " + long + b"last"

    played = Played(max_buffered_bytes=SLICE_BYTES)
    played.sse.write(b"x" * SLICE_BYTES * 3)
    assert played.slow == ["slow"], "data longer than a slice cannot exceed the limit"


async def test_more_than_the_buffer_is_written_as_the_client_reads() -> None:
    played = Played(max_buffered_bytes=SLICE_BYTES)
    running = asyncio.create_task(played.sse.run())
    long = bytes(range(256)) * 4096
    writing = asyncio.create_task(played.sse.write_all(long))
    async with asyncio.timeout(LIMIT_S):
        while not writing.done():
            await eventually(lambda: played.held > HIGH_WATER_BYTES or writing.done())
            assert played.held <= HIGH_WATER_BYTES + SLICE_BYTES
            played.read(1 << 20)
    played.sse.close()
    await asyncio.wait_for(running, LIMIT_S)
    assert played.written == long
    assert played.slow == []


async def test_writing_all_ends_with_a_client_that_does_not_read() -> None:
    played = Played(slow_reader_timeout_s=0.04)
    running = asyncio.create_task(played.sse.run())
    writing = asyncio.create_task(played.sse.write_all(b"a" * (SLICE_BYTES * 4)))
    await asyncio.wait_for(played.aborted.wait(), LIMIT_S)
    played.room.set()
    await asyncio.wait_for(writing, LIMIT_S)
    assert played.slow == ["slow"]
    assert len(played.written) == SLICE_BYTES
    with pytest.raises(ConnectionResetError):
        await running


async def test_slow_reader_with_progress_stays_connected() -> None:
    played = Played(slow_reader_timeout_s=0.04)
    running = asyncio.create_task(played.sse.run())
    played.sse.write(b"a" * (HIGH_WATER_BYTES * 4))
    looks_with_progress = 20

    def on_look() -> None:
        if played.looked <= looks_with_progress:
            played.held -= 1

    played.looked = 0
    played.on_look = on_look
    await asyncio.wait_for(played.aborted.wait(), LIMIT_S)
    assert played.looked > looks_with_progress
    assert played.slow == ["slow"]
    played.room.set()
    with pytest.raises(ConnectionResetError):
        await running


@both_forms
async def test_late_opening_is_a_504(ask: dict[str, Any]) -> None:
    gateway = FakeGateway()
    gateway.hold = asyncio.Event()
    async with serving(gateway, FrontendConfig(request_timeout_s=0.05)) as served:
        assert (await served.post("/v1/messages", ask)).error[:2] == (504, "timeout_error")
    assert gateway.open_cancelled_for == "timeout"
    assert served.lines[-1]["outcome"] == "timed_out"


@both_forms
async def test_late_answer_ends_with_an_error(ask: dict[str, Any], loop_clock: LoopClock) -> None:
    gateway = FakeGateway(lambda: [text(0, "so"), asyncio.Event()])
    async with serving(gateway, FrontendConfig(request_timeout_s=30)) as served:
        asking = asyncio.create_task(served.http.post("/v1/messages", json=ask))
        await eventually(lambda: bool(gateway.turns and gateway.turns[0].player))
        response = await asking if ask is STREAM else None
        loop_clock.passed += 30
        response = response or await asking
        body = await response.text()
    last = body.rstrip().rpartition("\n\n")[2]
    assert '{"type":"error","error":{"type":"timeout_error"' in last
    assert (response.status, "event: error" in body) == (
        (200, True) if ask is STREAM else (504, False)
    )
    assert gateway.turns[0].cancelled[0] == "timeout"
    assert served.lines[-1]["outcome"] == "timed_out"
