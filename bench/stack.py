"""Starts the processes of one run, and ends them; among them our own stack, `turnwire up`."""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec

from bench.cpu import stages

START_S = 120.0
STOP_S = 45.0
POLL_S = 0.05
ASK_S = 5.0
LOG_BYTES = 4000
PEERS = "TURNWIRE_PEERS"
"""Environment variable: the directory in which peers are kept."""
SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parent.parent
STATE = ROOT / ".turnwire" / "bench"

Processes = Mapping[str, asyncio.subprocess.Process]


class Running(msgspec.Struct, frozen=True):
    """A running stack."""

    url: str
    model: str
    pids: Mapping[str, int]
    """Its processes by stage."""
    marks: Path
    """The file in which the script player writes when tokens leave it."""
    start_s: float
    """From the command to the first request that can be served."""


class StackFailed(Exception):
    """The stack did not start; the text is the end of its output."""


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits the arguments of a command at `--`; what follows is for `turnwire up`."""
    at = words.index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


@asynccontextmanager
async def own_stack(
    arguments: Sequence[str] = (),
    start_s: float = START_S,
    root: Path = ROOT,
    path: Sequence[Path] = (),
) -> AsyncIterator[Running]:
    """Starts `turnwire up` on a free port with `bench/scripts`, or another engine, and ends it.

    `arguments` follow its own; `root`: the checkout that runs; another one than this runs in its
    own environment, if it has one. `path`: folders with packages that take the place of installed
    ones. Raises StackFailed.
    """
    STATE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="turnwire-bench-") as name:
        folder = Path(name)
        ready, marks = folder / "ready.json", folder / "marks"
        marks.touch()
        scripted = not any(argument.partition("=")[0] == "--engine" for argument in arguments)
        script = (f"--script-dir={SCRIPTS}", f"--engine-args={json.dumps({'marks': str(marks)})}")
        own = root / ".venv" / "bin" / "python"
        python = str(own) if root != ROOT and own.exists() else sys.executable
        command = [
            *(python, "-m", "services.cli.main", "up", "--port=0"),
            *(("--engine=script", *script) if scripted else ()),
            f"--ready-file={ready}",
            f"--state-dir={STATE}",
            *arguments,
        ]
        # `turnwire up` refuses variables of Turnwire that it does not know.
        env = {name: value for name, value in os.environ.items() if name != PEERS}
        env["PYTHONPATH"] = os.pathsep.join(map(str, (root, *path)))

        async def is_ready() -> bool:
            return ready.exists()

        started = asyncio.get_running_loop().time()
        async with processes({"up": command}, is_ready, start_s, env=env, cwd=root) as up:
            took = asyncio.get_running_loop().time() - started
            facts = json.loads(ready.read_bytes())
            pids = stages(up["up"].pid)
            yield Running(facts["url"], facts["model"], pids, marks, round(took, 3))


@asynccontextmanager
async def processes(
    commands: Mapping[str, Sequence[str]],
    ready: Callable[[], Awaitable[bool]],
    start_s: float = START_S,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
) -> AsyncIterator[Processes]:
    """Starts processes, yields once they are `ready`, and ends them. Raises StackFailed."""
    running: dict[str, asyncio.subprocess.Process] = {}
    with tempfile.TemporaryDirectory(prefix="turnwire-bench-") as folder:
        logs = Path(folder)
        try:
            for name, command in commands.items():
                log_path = logs / f"{name}.log"
                with log_path.open("wb") as log:
                    running[name] = await asyncio.create_subprocess_exec(
                        *command,
                        cwd=cwd,
                        env=env,
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
            try:
                async with asyncio.timeout(start_s):
                    await _until(ready, running)
            except (TimeoutError, StackFailed) as error:
                problem = str(error) or f"not ready within {start_s:g} s"
                raise StackFailed(f"{problem}:\n{_said(logs)}") from None
            yield running
        finally:
            for process in reversed(running.values()):
                await _end(process)


async def answers(url: str, containing: bytes = b"") -> bool:
    """Returns whether a server answers with status 200, and with these bytes."""
    timeout = aiohttp.ClientTimeout(ASK_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(url) as answer:
            return answer.status == 200 and containing in await answer.read()
    except (aiohttp.ClientError, TimeoutError):
        return False


def free_port() -> int:
    """A port of the loopback on which nothing listens now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def _until(ready: Callable[[], Awaitable[bool]], running: Processes) -> None:
    while not await ready():
        for name, process in running.items():
            if process.returncode is not None:
                raise StackFailed(f"{name} ended with status {process.returncode}")
        await asyncio.sleep(POLL_S)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Sends SIGTERM to a process, and kills it if it does not end within `STOP_S`."""
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _said(logs: Path) -> str:
    ends = (log.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace") for log in logs.iterdir())
    return "\n".join(ends)
