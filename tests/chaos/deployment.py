"""One Turnwire under test: a nats-server and processes of every stage, which a supervisor starts
again when they end."""

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from services.cli.up.embedded_nats import find_nats_server
from tests.kit.nats import NatsServer, free_port
from tests.kit.stack import Child, Stack
from tests.kit.waiting import LIMIT_S

STAGES = ("frontend", "preprocessor", "worker", "parser")
NATS = "nats"
SERVER = "server"
"""The inference servers, where workers decode on them: one for each worker."""
OPTIONS: dict[str, dict[str, Any]] = {
    "frontend": {"response_store": "shared"},
    "preprocessor": {"prompt_cache_mb": 2, "ledger_mb": 2},
}
"""Caches are full long before the end of a soak, so that memory must stay flat."""
RESTART_S = 1.0
"""After which the supervisor starts a process again that ended by itself."""
SETTLE_S = 150.0


class Deployment:
    """`instances` of each stage, as in production but for the script engine. Not thread-safe."""

    def __init__(
        self, model: Path, instances: int, directory: Path, *, over_servers: bool = False
    ) -> None:
        """`directory`: for logs and the bus; `over_servers`: workers decode on servers."""
        directory.mkdir(parents=True, exist_ok=True)
        self.instances = instances
        self._over_servers = over_servers
        self.nats = NatsServer(str(find_nats_server()), str(directory))
        self.stack = Stack(self.nats, model, directory)
        self.down: set[Child] = set()
        """Processes that a fault ended and will start again."""
        self._read: dict[str, int] = {}
        """Bytes of each log in which exceptions were looked for."""
        self.died: list[str] = []
        """Processes that ended by themselves."""
        self._supervisor: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Deployment":
        try:
            await asyncio.to_thread(self.nats.start)
            for stage in reversed(STAGES):
                for _ in range(self.instances):
                    options: dict[str, Any] = dict(OPTIONS.get(stage, {}))
                    if stage == "frontend":
                        options["port"] = free_port()
                    if stage == "worker" and self._over_servers:
                        options |= {"engine": "vllm-server", "engine_url": self._start_server().url}
                    self.stack.start(stage, **options)
            if wrong := await self.settled():
                raise RuntimeError(wrong)
        except BaseException:
            await self._stop()
            raise
        self._supervisor = asyncio.create_task(self._supervise())
        return self

    def _start_server(self) -> Child:
        """Starts an inference server in a process of its own."""
        name, port = f"{SERVER}{len(self.of(SERVER))}", free_port()
        argv = [sys.executable, "-m", "tests.chaos.script_server", str(self.stack.model), str(port)]
        log = self.stack.directory / f"{name}.log"
        server = Child(SERVER, name, argv, dict(os.environ), log, port)
        self.children.append(server)
        return server

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _stop(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
        with contextlib.suppress(AssertionError):
            self.nats.resume()
        self.stack.stop()
        self.nats.kill()

    @property
    def children(self) -> list[Child]:
        return self.stack.children

    def of(self, stage: str) -> list[Child]:
        """All of a stage, those that are down included."""
        return [child for child in self.children if child.stage == stage]

    def urls(self) -> list[str]:
        return [child.url for child in self.of("frontend")]

    def pids(self) -> dict[str, int]:
        found = {
            child.name: child.process.pid for child in self.children if child.process.poll() is None
        }
        return found | ({NATS: self.nats.pid} if self.nats.pid else {})

    def exceptions(self) -> list[str]:
        """Exceptions in the logs since the last call: no fault is an excuse for one, but for what
        tasks of nats-py log when a connection ends. Logs of servers are not read."""
        found = []
        for child in self.children:
            if child.stage == SERVER:
                continue
            with child.log.open("rb") as log:
                log.seek(self._read.get(child.name, 0))
                lines = log.readlines()
                self._read[child.name] = log.tell()
            for line in lines:
                if b"Traceback" in line and b"coro=<Client._" not in line:
                    found.append(f"{child.name}: ...{line.decode(errors='replace').strip()[-200:]}")
        return found

    async def _supervise(self) -> None:
        """Starts processes again. A worker may end with its server."""
        while True:
            await asyncio.sleep(0.2)
            for child in self.children:
                if child not in self.down and child.process.poll() is not None:
                    if not (self._over_servers and child.stage == "worker"):
                        self.died.append(
                            f"{child.name} ended by itself with {child.process.returncode}"
                        )
                    self.down.add(child)
                    asyncio.get_running_loop().call_later(RESTART_S, self._again, child)

    def _again(self, child: Child) -> None:
        if child in self.down and child.process.poll() is not None:
            child.start()
        self.down.discard(child)

    async def settled(self, limit_s: float = SETTLE_S, *, idle: bool = True) -> str:
        """Waits until every frontend counts every process among the living and, if `idle`, none has
        a turn. Returns what is not as it should be at the limit, or ""."""
        deadline = time.monotonic() + limit_s
        while True:
            wrong = [
                text
                for child in self.of("frontend")
                if (text := await self._unsettled(child, idle=idle))
            ]
            if not wrong:
                return ""
            if time.monotonic() > deadline:
                return "; ".join(wrong)
            await asyncio.sleep(0.3)

    async def _unsettled(self, frontend: Child, *, idle: bool) -> str:
        self.stack.url = frontend.url
        try:
            health = await asyncio.wait_for(asyncio.to_thread(self.stack.health), LIMIT_S)
        except (TimeoutError, ValueError):
            health = {}
        if not health.get("ready"):
            return f"{frontend.name} is not ready: {health}"
        if idle and health["turns"]:
            return f"{frontend.name} still has {health['turns']} turns"
        for stage, processes in health["stages"].items():
            names = sorted(
                process["id"].rpartition("-")[0] for process in processes if not process["draining"]
            )
            expected = sorted(child.name for child in self.of(stage))
            if names != expected:
                return f"{frontend.name} counts {names} among the living, not {expected}"
            busy = [process for process in processes if process["running"]]
            if idle and busy:
                return f"{frontend.name}: turns are left: {busy}"
        return ""
