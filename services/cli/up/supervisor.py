"""Keeps child processes running: starts them, relays their output, restarts those that die, and
ends them.

The children have their own process group, so a Ctrl-C in the terminal reaches only the supervisor,
which ends them in order. If the supervisor is killed, the leader of the group ends them (`reaper`).
"""

import asyncio
import os
import secrets
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence

from msgspec import Struct

from services.cli.common import describe_status
from services.runtime.config.names import START_VARIABLE
from services.runtime.listeners import Listeners, raise_error

FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
STEADY_S = 10.0
"""A child that ran for this time did not fail at its start, and is restarted with the first
back-off."""
LINE_BYTES = 1024 * 1024
START_ATTEMPTS = 3
"""Failures of a child before the server is ready after which it is not started again."""
LAST_LINES_S = 1.0
"""How long the output of a child that has ended is awaited. Its own children may hold it open."""
USAGE = 2


class ChildSpec(Struct, frozen=True):
    """A process to keep running."""

    name: str
    command: list[str]
    env: dict[str, str] = {}
    """Variables added to the supervisor's environment."""
    group: str = ""
    """The others go on if all of this group fail; "": they do not."""


class ChildFailed(Exception):
    """A child failed, and a restart would not help."""


class Display(ABC):
    """Shows what children print, and what happens to them."""

    @abstractmethod
    def relay(self, name: str, line: str) -> None:
        """Shows a line of a child."""

    @abstractmethod
    def report(self, text: str, level: str = "info", event: str = "output", **fields: str) -> None:
        """Shows a line of the supervisor, such as a restart. `level`, `event`, `fields`: as in
        logs."""

    @abstractmethod
    def advance(self, name: str, text: str) -> None:
        """Takes the last state of a child's progress bar, which the child writes again and again on
        one line."""


class Supervisor:
    """Supervises the children of one `turnwire up`."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self.on_end = Listeners[str](raise_error)
        """Called at once with the id of each process that has ended, as on the bus."""
        self._leader: asyncio.subprocess.Process | None = None
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        self._ids: dict[str, str] = {}
        """Name → id of its last process: process ids and host names repeat across containers."""
        self._last: dict[str, str] = {}
        self._groups: set[str] = set()
        self.failed: set[str] = set()
        """Groups with a child that did not start. One that can be started again, is."""
        self._failures: asyncio.Queue[str] = asyncio.Queue()
        self.ready = False
        """Set by the owner when the server is ready. From then on, restarts are not limited."""

    async def start(self, spec: ChildSpec) -> None:
        """Starts one process and keeps it running until `stop`."""
        if self._leader is None:
            self._leader = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.cli.up.reaper",
                stdin=asyncio.subprocess.PIPE,
                process_group=0,
            )
        if spec.group:
            self._groups.add(spec.group)
        child = await self._spawn(spec)
        self._keepers[spec.name] = asyncio.create_task(self._keep(spec, child), name=spec.name)

    async def raise_on_failure(self) -> None:
        """Waits until a child cannot be kept running. Raises ChildFailed with the reason."""
        raise ChildFailed(await self._failures.get())

    @property
    def names(self) -> list[str]:
        """All children, in the order of their start."""
        return list(self._keepers)

    def pid(self, name: str) -> int | None:
        """The process id of a child; None if it does not run now."""
        process = self._running.get(name)
        return process.pid if process else None

    def restart(self, name: str) -> None:
        """Ends a child, which is started again."""
        process = self._running.get(name)
        if process is not None:
            process.terminate()

    async def stop(self, names: Sequence[str]) -> None:
        """Sends SIGTERM to these children and waits for their end."""
        self._ending.update(names)
        for name in names:
            process = self._running.get(name)
            if process is None:
                self._keepers[name].cancel()
            elif process.returncode is None:
                process.terminate()
        await asyncio.gather(*(self._keepers[name] for name in names), return_exceptions=True)

    async def kill(self) -> None:
        """Kills all children and their children. Must be the last call."""
        self._ending.update(self._keepers)
        for keeper in self._keepers.values():
            keeper.cancel()
        if self._leader is not None:
            try:
                os.killpg(self._leader.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            await self._leader.wait()
        await asyncio.gather(*(process.wait() for process in self._running.values()))
        await asyncio.gather(*self._keepers.values(), return_exceptions=True)

    async def _spawn(self, spec: ChildSpec) -> asyncio.subprocess.Process:
        assert self._leader is not None
        start = secrets.token_hex(3)
        self._ids[spec.name] = f"{spec.name}-{start}"
        process = await asyncio.create_subprocess_exec(
            *spec.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **spec.env, START_VARIABLE: start},
            process_group=self._leader.pid,
            limit=LINE_BYTES,
        )
        self._running[spec.name] = process
        return process

    async def _keep(self, spec: ChildSpec, child: asyncio.subprocess.Process) -> None:
        """Starts a child again whenever it has ended, as long as that makes sense."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            started = loop.time()
            status = await self._wait_for_end(spec.name, child)
            if spec.name in self._ending:
                return
            is_steady = self.ready and loop.time() - started > STEADY_S
            failures = 1 if is_steady else failures + 1
            if not self._can_start_again(spec, status, failures):
                return

            delay = min(FIRST_BACKOFF_S * 2 ** (failures - 1), MAX_BACKOFF_S)
            self._display.report(
                f"{spec.name} ended ({describe_status(status)}); starting it again in {delay:g} s",
                "warning",
                "process.ended",
                ended=spec.name,
                status=describe_status(status),
            )
            await asyncio.sleep(delay)
            try:
                child = await self._spawn(spec)
            except OSError as error:
                self._failures.put_nowait(f"{spec.name} cannot be started again: {error}")
                return

    async def _wait_for_end(self, name: str, child: asyncio.subprocess.Process) -> int:
        """Relays the output of a child until it ends. Returns its status."""
        output = asyncio.ensure_future(self._read(name, child))
        status = await child.wait()
        self._running.pop(name, None)
        self.on_end.call(self._ids[name])
        await asyncio.wait({output}, timeout=LAST_LINES_S)
        return status

    def _can_start_again(self, spec: ChildSpec, status: int, failures: int) -> bool:
        """Whether a child that has ended is to be started again. Reports one that does not
        start."""
        is_usage = status == USAGE
        gives_up = not self.ready and failures >= START_ATTEMPTS
        if is_usage or gives_up:
            reason = self._why_not_running(spec.name, status)
            if not spec.group:
                self._failures.put_nowait(reason)
                return False
            self._fail_group(spec.group, reason)
        return not is_usage

    def _fail_group(self, group: str, reason: str) -> None:
        """Goes on without a group, unless it is the last one."""
        if group in self.failed:
            return
        self.failed.add(group)
        if self.failed >= self._groups:
            self._failures.put_nowait(reason)
        else:
            self._display.report(f"{reason}; the other models go on", "error")

    def _why_not_running(self, name: str, status: int) -> str:
        reason = f"{name} does not run: {describe_status(status)}"
        last_line = self._last.get(name)
        return f"{reason}: {last_line}" if last_line else reason

    async def _read(self, name: str, child: asyncio.subprocess.Process) -> None:
        """Relays the output line by line, and lines longer than `LINE_BYTES` in pieces."""
        assert child.stdout is not None
        rest = b""
        while True:
            data = await child.stdout.read(LINE_BYTES)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) >= LINE_BYTES:
                lines.append(rest)
                rest = b""
            for line in lines:
                self._read_line(name, line)
            state = _after_return(rest)
            if state:
                self._display.advance(name, state)
        if rest:
            self._read_line(name, rest)

    def _read_line(self, name: str, line: bytes) -> None:
        self._last[name] = _after_return(line) or line.decode(errors="replace")
        self._display.relay(name, self._last[name])


def _after_return(line: bytes) -> str:
    """The text after the last carriage return that text follows; "" without one."""
    if b"\r" not in line:
        return ""
    last = line.rstrip(b"\r").rpartition(b"\r")[2]
    return last.decode(errors="replace").strip()
