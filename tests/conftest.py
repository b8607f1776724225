"""Shared fixtures: a real nats-server, and processes that are connected to it."""

import asyncio
import contextlib
import gc
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
from hypothesis.internal.conjecture import providers
from structlog.typing import FilteringBoundLogger

from schemas.control import Load, ModelCard, Stage
from services.cli.commands.make_buckets import make_buckets
from services.cli.up.embedded_nats import find_nats_server
from services.runtime.bus import Bus
from services.runtime.config import BucketsConfig, BusConfig, ServiceConfig
from services.runtime.heartbeats import Service
from services.runtime.process import Process
from services.runtime.storage.kv import Bucket, BucketConfig, create_bucket

pytest_plugins = ["tests.model_fixtures"]

LIMIT_S = 60.0
"""How long a test waits for an event before it fails."""
PORTS = range(10_000, 32_768)
"""Ports that the system does not choose for connections."""

SLOW_MACHINE = (hypothesis.HealthCheck.too_slow,)
"""What a property may not be judged by: on a loaded machine any example may take seconds, to make
and to run."""
# A change meets the same examples in each run, so that what fails is the change; the nightly run
# explores others.
_any_machine = hypothesis.settings(deadline=None, suppress_health_check=SLOW_MACHINE)
hypothesis.settings.register_profile("quick", _any_machine, max_examples=20, derandomize=True)
hypothesis.settings.register_profile("thorough", _any_machine, max_examples=400, derandomize=True)
hypothesis.settings.register_profile("explore", _any_machine, max_examples=400)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
hypothesis.settings.load_profile(PROFILE)
QUICK = PROFILE == "quick"
if PROFILE != "explore":
    # Hypothesis also draws the constants of all modules that are imported so far. Each process of
    # pytest-xdist has others.
    providers.is_local_module_file = lambda _: False  # type: ignore[assignment,attr-defined]


def examples(thorough: int) -> int:
    """The examples of a property that sets their number itself: a third of them in the quick
    profile."""
    return -(-thorough // 3) if QUICK else thorough


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of running stacks first and those of pipelines in their own event loop in the
    middle.

    Each process of pytest-xdist begins with an equal part of this list, and takes from the end of
    another's when it has done its own. So one process starts the stacks, where each of four would,
    and another one has the tests that mostly wait; the tests that compute go on beside both.
    """
    pipeline = Path(__file__).parent / "pipeline"
    stacks: list[pytest.Item] = []
    loops: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        in_loop = "local" in getattr(item, "fixturenames", ())
        (others if item.path.parent != pipeline else loops if in_loop else stacks).append(item)
    middle = max(len(items) // 2 - len(stacks), 0)
    items[:] = [*stacks, *others[:middle], *loops, *others[middle:]]


def pytest_collection_finish() -> None:
    """Ten thousand tests and the modules they import are no garbage: collections need not look at
    them."""
    gc.freeze()


def free_port() -> int:
    """A port on which nothing listens.

    One that the system chooses can be chosen again before its server starts, for a connection or
    for another test's server.
    """
    chance = random.SystemRandom()  # Hypothesis seeds the shared one
    while True:
        port = chance.choice(PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class NatsServer:
    """A nats-server that a test may kill and start again on the same port."""

    def __init__(
        self, binary: str, directory: str, *, jetstream: str = "max_file_store: 2GB"
    ) -> None:
        """`jetstream`: its limits; "": the server has none."""
        self._binary = binary
        self._directory = directory
        self._jetstream = jetstream
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """0 while it does not run."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        config = f"{self._directory}/nats-{self.port}.conf"
        with open(config, "w", encoding="utf-8") as file:
            file.write(f'host: "127.0.0.1"\nport: {self.port}\nmax_payload: 8MB\n')
            if self._jetstream:
                file.write(
                    f'jetstream {{ store_dir: "{self._directory}/js-{self.port}"\n{self._jetstream} }}\n'
                )
        self._process = subprocess.Popen(
            [self._binary, "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), LIMIT_S) as connection,
            ):
                if connection.recv(4) == b"INFO":
                    return
            time.sleep(0.01)
        raise RuntimeError("nats-server did not start")

    def make_buckets(self, **login: str) -> None:
        """The set-up step, in a thread, for tests whose loop runs. `login`: settings of its
        connection."""
        config = BucketsConfig(bus=BusConfig(nats_url=self.url, **login), ledger_store_mb=64)  # type: ignore[arg-type]
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: asyncio.run(make_buckets(config))).result()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def lose_storage(self) -> None:
        """Deletes the buckets of a server that does not run."""
        shutil.rmtree(f"{self._directory}/js-{self.port}")

    def terminate(self) -> None:
        """Asks it to end, and waits until it has."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(LIMIT_S)
            self._process = None

    def pause(self) -> None:
        """Stops reading and writing until `resume`."""
        assert self._process is not None
        suspend(self._process)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def suspend(process: subprocess.Popen[Any]) -> None:
    """Stops a child, and returns when all its threads have stopped: on a busy machine that takes a
    moment."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


@pytest.fixture(scope="session")
def nats_binary() -> str:
    return str(find_nats_server())


@pytest.fixture(scope="session")
def nats(nats_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One server for all tests that leave it intact."""
    server = NatsServer(nats_binary, str(tmp_path_factory.mktemp("nats")))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_nats(nats_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server for one test, which may kill it."""
    server = NatsServer(nats_binary, str(tmp_path_factory.mktemp("nats")))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def quiet_log() -> FilteringBoundLogger:
    """A logger that writes nothing below `critical`."""
    log: FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(), wrapper_class=structlog.make_filtering_bound_logger(50)
    )
    return log


async def make_bucket(bus: Bus, config: BucketConfig, log: FilteringBoundLogger) -> Bucket:
    """A bucket that exists."""
    await create_bucket(bus, config)
    return Bucket(bus, config, log)


MakeProcess = Callable[..., Awaitable[Process]]


class Reported(Service):
    """A service that only reports these models and this load."""

    def __init__(self, *models: ModelCard, load: Load | None = None) -> None:
        self.models = models
        self._load = load or Load()

    def load(self) -> Load:
        return self._load


@pytest.fixture
async def make_process(
    nats: NatsServer, quiet_log: FilteringBoundLogger
) -> AsyncIterator[MakeProcess]:
    """Connected processes, which send a heartbeat at each `process.heartbeats.send()`; closed at the
    end."""
    processes: list[Process] = []

    async def make(
        stage: Stage, name: str, *, url: str = "", drain_s: float = 30.0, **bus: object
    ) -> Process:
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


async def eventually(condition: Callable[[], bool], timeout_s: float = LIMIT_S) -> None:
    """Waits until a condition is true; the loop runs on meanwhile."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def until(check: Callable[[], Awaitable[object]], timeout_s: float = LIMIT_S) -> None:
    """Waits until `check`, which is called again and again, returns a true value."""
    async with asyncio.timeout(timeout_s):
        while not await check():
            await asyncio.sleep(0.02)
