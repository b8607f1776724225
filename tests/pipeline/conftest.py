"""Running stacks for the pipeline tests: they end with the last of these, since idle processes cost
time, too."""

import asyncio
import time
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.typing import FilteringBoundLogger

from tests.kit.counting import Model
from tests.kit.local import Local
from tests.kit.messages_client import Client
from tests.kit.nats import NatsServer, free_port
from tests.kit.stack import Child, Stack
from tests.kit.strict_states import strict_states
from tests.kit.world import SimulatedNats, VirtualLoop

__all__ = ["strict_states"]


@pytest.fixture(scope="package")
def demo_model(demo_dir: Path) -> Path:
    return demo_dir


@pytest.fixture(scope="package")
def stack(
    nats: NatsServer, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Two of every inner stage and one frontend, for tests that leave them intact."""
    running = Stack(nats, demo_model, tmp_path_factory.mktemp("stack"))
    counts = {"worker": 2, "parser": 2, "preprocessor": 2}
    frontend = {"ping_interval_s": 0.3, "slow_reader_timeout_s": 2, "max_body_bytes": 4 << 20}
    try:
        yield running.start_all(counts, frontend=frontend)
    finally:
        running.stop()


@pytest.fixture(scope="package")
def make_nats(
    nats_binary: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], NatsServer]]:
    """A server for each pipeline: processes on one server discover each other's models."""
    servers: list[NatsServer] = []

    def make() -> NatsServer:
        server = NatsServer(nats_binary, str(tmp_path_factory.mktemp("nats")))
        server.start()
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.kill()


@pytest.fixture(scope="package")
def metrics_ports() -> list[int]:
    """Where the inner stages of `image_stack` have their metrics."""
    return [free_port() for _ in range(3)]


@pytest.fixture(scope="package")
def image_stack(
    vision_dir: Path,
    make_nats: Callable[[], NatsServer],
    metrics_ports: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    """One of each stage, for a model that sees images. With its provider of web searches, which
    does not exist, the frontend has the metrics of hosted tools."""
    running = Stack(make_nats(), vision_dir, tmp_path_factory.mktemp("images"))
    stages = ("worker", "parser", "preprocessor")
    options: dict[str, dict[str, Any]] = {
        stage: {"metrics_port": port} for stage, port in zip(stages, metrics_ports, strict=True)
    }
    options["frontend"] = {"web_provider": f"http://127.0.0.1:{free_port()}"}
    try:
        yield running.start_all(**options)
    finally:
        running.stop()


COUNTS = {"worker": 2, "parser": 2, "preprocessor": 2}
SHARED = {"response_store": "shared", "drain_s": 20, "wait_s": 5}
"""Options of the frontends of `fragile_stack`."""


@pytest.fixture(scope="package")
def fragile_stack(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Two of every inner stage, which detect a death quickly and wait briefly; frontends share
    stored Responses."""
    directory = tmp_path_factory.mktemp("fragile")
    running = Stack(
        make_nats(), demo_model, directory, beat_interval_s=0.25, dead_after_s=1.5, recovery_s=8
    )
    try:
        yield running.start_all(COUNTS, frontend=SHARED)
    finally:
        running.stop()


@pytest.fixture
def own_stack(fragile_stack: Stack) -> Stack:
    """`fragile_stack`, with every process replaced that the last test ended."""
    fragile_stack.restore(COUNTS, frontend=SHARED)
    return fragile_stack


@pytest.fixture(scope="package")
def counting_model(demo_model: Path) -> Model:
    return Model(demo_model, "counting")


@pytest.fixture(scope="package")
def local_nats(make_nats: Callable[[], NatsServer]) -> NatsServer:
    return make_nats()


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], AbstractEventLoop]]:
    """Tests with `local` run in virtual time."""
    if "local" in getattr(item, "fixturenames", ()):
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture
async def local(
    counting_model: Model, quiet_log: FilteringBoundLogger, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Local]:
    """A pipeline in the event loop of the test and in virtual time, with no process started."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    monkeypatch.setattr(time, "monotonic", loop.time)
    nats = SimulatedNats(loop)
    nats.start()
    pipeline = Local(nats, counting_model, quiet_log)
    yield pipeline
    await pipeline.stop()
    assert loop.errors == []


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[Client]:
    connected = Client(stack.url)
    yield connected
    await connected.http.close()


@pytest.fixture
async def own_client(own_stack: Stack) -> AsyncIterator[Client]:
    connected = Client(own_stack.url)
    yield connected
    await connected.http.close()


@pytest.fixture
def frontends(own_stack: Stack) -> list[Child]:
    """Two frontends that share their store."""
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
