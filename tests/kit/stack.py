"""Runs Turnwire for tests: real processes on a real nats-server, each of which may be killed."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.kit.nats import NatsServer, free_port, suspend
from tests.kit.waiting import LIMIT_S

MODEL = "turnwire-demo"
MAIN = (sys.executable, "-m", "services.cli.main")
"""The command line in a process of its own."""


class Child:
    """One service process."""

    def __init__(
        self,
        stage: str,
        name: str,
        argv: list[str],
        environment: dict[str, str],
        log: Path,
        port: int,
    ) -> None:
        self.stage = stage
        self.name = name
        self.log = log
        self.url = f"http://127.0.0.1:{port}" if port else ""
        self._argv = argv
        self._environment = environment
        self.start()

    def start(self) -> None:
        """Starts, or starts again as a supervisor would: the same arguments and port, and the log
        goes on."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self._argv,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
            )

    def kill(self) -> None:
        """Ends at once, without a drain."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """Starts the drain."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = LIMIT_S) -> int:
        return self.process.wait(timeout_s)

    def pause(self) -> None:
        suspend(self.process)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def text(self) -> str:
        return self.log.read_text(errors="replace")


class Stack:
    """Any number of processes of each stage, for one model."""

    def __init__(
        self,
        nats: NatsServer,
        model: Path,
        directory: Path,
        *,
        environment: dict[str, str] | None = None,
        **common: Any,
    ) -> None:
        """`environment`: additional variables, `common`: options, both of every process."""
        self.nats = nats
        self.environment = environment or {}
        self.common = common
        self.names: set[str] = set()
        """The models that it serves."""
        self.model = model
        self.directory = directory
        self.children: list[Child] = []
        self.url = ""
        self._started = 0

    def start(self, stage: str, **options: Any) -> Child:
        """Starts one process; does not wait for it. The option `module` runs the stage that is its
        first argument."""
        if not self._started:
            self.nats.make_buckets()
        name = f"{stage}{self._started}"
        program: tuple[str, ...] = ("services.cli.main", "serve", stage)
        if "module" in options:
            program = (options.pop("module"), stage)
        self._started += 1
        port = (options.pop("port", 0) or free_port()) if stage == "frontend" else 0
        common = {"nats_url": self.nats.url, "id": name, "log_format": "json", **self.common}
        options = {**common, **options}
        if stage == "frontend":
            options = {"port": port, **options}
        else:
            options = {"model": self.model, "served_model_name": MODEL, **options}
            self.names.add(str(options["served_model_name"]))
        if stage == "worker":
            options = {"script_mode": "request", "token_delay_ms": 0, **options}
        child = self._run(stage, name, program, port, options)
        if child.url and not self.url:
            self.url = child.url
        return child

    def start_up(self, **options: Any) -> Child:
        """Starts `turnwire up` on this bus, in place of single processes; its log has that of each
        stage."""
        port = free_port()
        state = self.directory / "state"
        options = {"nats_url": self.nats.url, "port": port, "state_dir": state, **options}
        program = ("services.cli.main", "up")
        child = self._run("frontend", "up", program, port, {"model": self.model, **options})
        self.url = child.url
        return child

    def _run(
        self, stage: str, name: str, program: tuple[str, ...], port: int, options: dict[str, Any]
    ) -> Child:
        argv = [sys.executable, "-m", *program]
        for option, value in options.items():
            flag = "--" + option.replace("_", "-")
            argv.append(flag if value is True else f"{flag}={value}")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.environment}
        log = self.directory / f"{name}.log"
        self.children.append(Child(stage, name, argv, environment, log, port))
        return self.children[-1]

    def start_all(self, counts: dict[str, int] | None = None, **options: dict[str, Any]) -> "Stack":
        """Starts `counts` of each stage (default one) and waits until the first frontend is
        ready."""
        for stage in ("worker", "parser", "preprocessor", "frontend"):
            for _ in range((counts or {}).get(stage, 1)):
                self.start(stage, **options.get(stage, {}))
        self.wait_ready(counts or {})
        return self

    def wait_ready(
        self, counts: dict[str, int] | None = None, timeout_s: float = 2 * LIMIT_S
    ) -> None:
        """Waits until the frontend is ready and has a heartbeat of each expected process."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            health = self.health()
            stages = health.get("stages", {})
            if (
                health.get("ready")
                and self.names <= set(health["models"])
                and all(
                    len(stages.get(s, [])) >= n for s, n in (counts or {}).items() if s in stages
                )
            ):
                return
            for child in self.children:
                if child.process.poll() not in (None, 0, -9):
                    raise RuntimeError(f"{child.name} died:\n{child.text()[-3000:]}")
            time.sleep(0.05)
        raise RuntimeError(
            f"not ready: {self.health()}\n" + "\n".join(c.text()[-1500:] for c in self.children)
        )

    def restore(self, counts: dict[str, int], **options: dict[str, Any]) -> None:
        """Waits until there are `counts` of each stage again, and the one frontend counts no others
        among the living."""
        self.children = [child for child in self.children if child.process.poll() is None]
        for child in self.children:
            child.resume()
        for stage, count in {**counts, "frontend": 1}.items():
            for extra in self.of(stage)[count:]:
                extra.kill()
            for _ in range(count - len(self.of(stage))):
                self.start(stage, **options.get(stage, {}))
        self.url = self.of("frontend")[0].url
        deadline = time.monotonic() + 2 * LIMIT_S
        while time.monotonic() < deadline:
            health = self.health()
            stages = health.get("stages", {})
            seen = {
                s: sorted(p["id"].rpartition("-")[0] for p in stages[s] if not p["draining"])
                for s in stages
            }
            if health.get("ready") and seen == {
                s: sorted(c.name for c in self.of(s)) for s in counts
            }:
                return
            time.sleep(0.05)
        raise RuntimeError(f"not restored: {self.health()}")

    def health(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=LIMIT_S) as answer:
                found: dict[str, Any] = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            found = json.loads(error.read())
        except OSError:
            return {}
        return found

    def of(self, stage: str) -> list[Child]:
        running = (child for child in self.children if child.process.poll() is None)
        return [child for child in running if child.stage == stage]

    def stop(self) -> None:
        for child in self.children:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGCONT)
                child.process.kill()
        for child in self.children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(LIMIT_S)


async def busy(stack: Stack, stage: str) -> str:
    """Waits for a child of a stage that has turns."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            stages = (await asyncio.to_thread(stack.health))["stages"]
            for process in stages[stage]:
                if process["running"]:
                    name: str = process["id"].rpartition("-")[0]
                    return name
            await asyncio.sleep(0.02)
