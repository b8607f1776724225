"""Measures heartbeats and frames: their bytes, the CPU to read them, and the CPU of nats-server to
carry them."""

import asyncio
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec
import nats
import structlog
from msgspec import Struct
from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from bench.cpu import cpu_seconds
from bench.large.routing import name
from bench.stack import free_port
from schemas import subjects
from schemas.control import Heartbeat, Load, ModelCard, Stage
from schemas.events import Delta
from schemas.frames import EventEntry, EventFrame, TokenEntry, TokenFrame
from services.cli.up.embedded_nats import find_nats_server
from services.runtime.heartbeat_auth import HeartbeatAuth
from services.runtime.registry import ProcessRegistry

CARD = ModelCard(
    "org/model-30b",
    max_model_len=131072,
    family="qwen3",
    tools=True,
    engine="vllm",
    block_tokens=32,
)
WINDOW, PATIENCE_S = 100, 60.0
"""Messages in flight, and the longest wait for one."""
READ = 2_000
"""Heartbeats to read, at least, to measure the cost of one."""


class Heartbeats(Struct, frozen=True):
    """One heartbeat of every process of a bus."""

    processes: int
    bytes: float
    """Size of one, on average."""
    read_us: float
    """CPU to check and apply one."""


def heartbeats(counts: dict[str, int], links: dict[str, Counter[int]]) -> Heartbeats:
    """Encodes and reads the heartbeats of every process as the processes do, signed."""
    with tempfile.TemporaryDirectory() as directory:
        key = Path(directory) / "heartbeat.key"
        key.write_text("k" * 64)
        log = structlog.get_logger()
        sender = HeartbeatAuth(str(key), CollectorRegistry(), log)
        receiver = HeartbeatAuth(str(key), CollectorRegistry(), log)
    receivers = {"worker": "parser", "parser": "frontend"}
    stages: tuple[Stage, ...] = ("frontend", "preprocessor", "worker", "parser")
    made: list[tuple[Stage, str, dict[str, int]]] = []
    for stage in stages:
        for number in range(counts[stage]):
            count = links.get(stage, Counter())[number]
            made.append(
                (
                    stage,
                    name(stage, number),
                    {name(receivers[stage], to): 4242 for to in range(count)},
                )
            )
    registry = ProcessRegistry(3.5)
    size = read = took = 0.0
    number = 0
    while read < READ:
        number += 1
        messages = [
            (
                subjects.heartbeat(stage, one),
                sender.encode(
                    Heartbeat(
                        stage,
                        one,
                        number,
                        models=[CARD],
                        load=Load(96, 0, 128, 1024, 0.8),
                        window_bytes=1 << 20,
                        sent=sent,
                        unacknowledged=sent,
                        version="1.0.0",
                        host=one[:-7],
                        pid=1,
                    )
                ),
            )
            for stage, one, sent in made
        ]
        began = time.process_time()
        for subject, data in messages:
            heartbeat = receiver.decode(subject, data)
            assert heartbeat is not None
            registry.receive(heartbeat, float(number))
        took += time.process_time() - began
        read += len(messages)
        size = sum(len(data) for _, data in messages) / len(messages)
    return Heartbeats(len(made), size, took / read * 1e6)


def frame_bytes(entries: float) -> tuple[int, int]:
    """Returns the bytes of a token frame and of an event frame with `entries` streams, one token
    each."""
    count = max(1, round(entries))
    turns = [f"turn_{number:024x}" for number in range(count)]
    tokens = TokenFrame("w" * 30, 2**40, [TokenEntry(turn, 1, 300, [4242]) for turn in turns])
    events = EventFrame(
        "p" * 30, 2**40, [EventEntry(turn, 1, [Delta(2, 300, " word")]) for turn in turns]
    )
    return len(msgspec.json.encode(tokens)), len(msgspec.json.encode(events))


async def server_cost(size: int, subscribers: int, messages: int) -> tuple[float, float]:
    """Returns the CPU microseconds of nats-server for a delivered message, and deliveries per
    second with clients on the same machine."""
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        command = [str(find_nats_server()), "-a", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, cwd=directory, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
        try:
            clients = [await _connected(port) for _ in range(subscribers + 1)]
            arrived, received = asyncio.Event(), 0

            async def receive(_: object) -> None:
                nonlocal received
                received += 1
                arrived.set()

            for client in clients[1:]:
                await client.subscribe("tw.v2.test", cb=receive)
                await client.flush()
            before, began = cpu_seconds(server.pid), time.monotonic()
            data = b"x" * size
            for sent in range(WINDOW, messages + 1, WINDOW):
                for _ in range(WINDOW):
                    await clients[0].publish("tw.v2.test", data)
                while received < sent * subscribers:  # the server drops clients that fall behind
                    arrived.clear()
                    await asyncio.wait_for(arrived.wait(), PATIENCE_S)
            took, used = time.monotonic() - began, cpu_seconds(server.pid) - before
            for client in clients:
                await client.close()
        finally:
            server.kill()
            server.wait()
    return used / received * 1e6, received / took


async def _connected(port: int) -> Client:
    async def ignore(_: Exception) -> None:
        """Does nothing: the client tries again."""

    for _ in range(300):
        try:
            return await nats.connect(
                f"nats://127.0.0.1:{port}", allow_reconnect=False, error_cb=ignore
            )
        except (OSError, nats.errors.Error):
            await asyncio.sleep(0.1)
    raise TimeoutError("nats-server did not start")
