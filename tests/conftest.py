"""What many tests share: a real nats-server, and connected processes on it."""

import asyncio
import contextlib
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import structlog
from structlog.typing import FilteringBoundLogger

from schemas.control import Stage
from services.cli.nats_binary import find_nats_server
from services.runtime.config import BusConfig, ServiceConfig
from services.runtime.process import Process


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class NatsServer:
    """A nats-server that a test may kill and bring back on the same port."""

    def __init__(self, binary: str, directory: str, *, jetstream: str = "max_file_store: 2GB") -> None:
        """`jetstream`: its limits; "": the server has none."""
        self._binary = binary
        self._directory = directory
        self._jetstream = jetstream
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        config = f"{self._directory}/nats-{self.port}.conf"
        with open(config, "w", encoding="utf-8") as file:
            file.write(f'host: "127.0.0.1"\nport: {self.port}\nmax_payload: 8MB\n')
            if self._jetstream:
                file.write(f'jetstream {{ store_dir: "{self._directory}/js-{self.port}"\n{self._jetstream} }}\n')
        self._process = subprocess.Popen(
            [self._binary, "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2) as connection:
                if connection.recv(4) == b"INFO":
                    return
        raise RuntimeError("nats-server did not start")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def nats_binary() -> str:
    return str(find_nats_server())


@pytest.fixture(scope="session")
def nats(nats_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One server for all tests that do not harm it."""
    server = NatsServer(nats_binary, str(tmp_path_factory.mktemp("nats")))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_nats(nats_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server for one test that kills it."""
    server = NatsServer(nats_binary, str(tmp_path_factory.mktemp("nats")))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def quiet_log() -> FilteringBoundLogger:
    """A logger that says nothing below `critical`."""
    log: FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(), wrapper_class=structlog.make_filtering_bound_logger(50)
    )
    return log


MakeProcess = Callable[..., Awaitable[Process]]


@pytest.fixture
async def make_process(nats: NatsServer, quiet_log: FilteringBoundLogger) -> AsyncIterator[MakeProcess]:
    """Connected processes that beat when told to (`process.beat()`); closed at the end."""
    processes: list[Process] = []

    async def make(stage: Stage, name: str, *, url: str = "", drain_s: float = 30.0, **bus: object) -> Process:
        config = ServiceConfig(
            id=name,
            drain_s=drain_s,
            bus=BusConfig(nats_url=url or nats.url, **bus),  # type: ignore[arg-type]
        )
        process = Process(stage, config, quiet_log)
        await process.connect()
        processes.append(process)
        return process

    yield make
    for process in processes:
        await process.bus.close()


async def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Waits until something became true; the loop runs on meanwhile."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)
