"""A real nats-server."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from services.cli.commands.make_buckets import make_buckets
from services.cli.up.embedded_nats import find_nats_server
from services.runtime.config.service import BusConfig
from services.runtime.config.stores import BucketsConfig
from tests.kit.waiting import LIMIT_S

PORTS = range(10_000, 32_768)
"""Ports that the system does not choose for connections."""


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
        self,
        binary: str,
        directory: str,
        *,
        jetstream: str = "max_file_store: 4GB",
        settings: str = "",
    ) -> None:
        """`jetstream`: its limits; "": the server has none. `settings`: more of its
        configuration."""
        self._binary = binary
        self._directory = directory
        self._jetstream = jetstream
        self._settings = settings
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
            file.write(self._settings)
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
    """A server for one test, which may kill it.

    Name it before `make_process`: fixtures end in the reverse order, and a process that closes
    after its server is gone waits for answers.
    """
    server = NatsServer(nats_binary, str(tmp_path_factory.mktemp("nats")))
    server.start()
    yield server
    server.kill()
