"""Starts our own stack for one run: `turnwire up` with the script engine."""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

START_S = 120.0
STOP_S = 45.0
POLL_S = 0.05
LOG_BYTES = 4000
PEERS = "TURNWIRE_PEERS"
"""Environment variable: the directory in which peers are kept."""
SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parent.parent
STATE = ROOT / ".turnwire" / "bench"


class Running(msgspec.Struct, frozen=True):
    """A running stack."""

    url: str
    urls: Sequence[str]
    """URLs of all frontends; `url` is the first."""
    model: str
    pid: int
    marks: Path
    start_s: float
    """From the command to the first request that can be served."""


class _Ready(msgspec.Struct):
    """The members of `turnwire up`'s ready file that are used here."""

    url: str
    urls: list[str]
    model: str


class StackFailed(Exception):
    """The stack did not start; the text is the end of its output."""


@asynccontextmanager
async def own_stack(
    arguments: Sequence[str] = (), start_s: float = START_S, root: Path = ROOT
) -> AsyncIterator[Running]:
    """Starts `turnwire up` on a free port with `bench/scripts`, or another engine, and ends it.

    `arguments` follow its own; `start_s`: how long it may take to be ready; `root`: the checkout
    that runs; another one than this runs in its own environment, if it has one.

    Raises StackFailed.
    """
    STATE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="turnwire-bench-") as name:
        directory = Path(name)
        ready, marks, log = directory / "ready.json", directory / "marks", directory / "log"
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
        started = asyncio.get_running_loop().time()
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=root,
                env=_environment(root),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            facts = await _ready(process, ready, log, start_s)
            took = asyncio.get_running_loop().time() - started
            yield Running(
                facts.url,
                facts.urls,
                facts.model,
                process.pid,
                marks,
                round(took, 3),
            )
        finally:
            await end_process(process)


def free_port() -> int:
    """A port of the loopback on which nothing listens now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _environment(root: Path) -> dict[str, str]:
    """Ours, for the checkout at `root`. `turnwire up` refuses variables of Turnwire that it does
    not know."""
    return {name: value for name, value in os.environ.items() if name != PEERS} | {
        "PYTHONPATH": str(root)
    }


async def _ready(
    process: asyncio.subprocess.Process, ready: Path, log: Path, start_s: float
) -> _Ready:
    try:
        async with asyncio.timeout(start_s):
            while not ready.exists():  # noqa: ASYNC240 - a stat of a local file
                if process.returncode is not None:
                    raise StackFailed(
                        f"turnwire up ended with status {process.returncode}:\n{_said(log)}"
                    )
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise StackFailed(
            f"turnwire up was not ready within {start_s:g} s:\n{_said(log)}"
        ) from None
    return msgspec.json.decode(ready.read_bytes(), type=_Ready)  # noqa: ASYNC240 - some bytes in a local file


async def end_process(process: asyncio.subprocess.Process) -> None:
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


def _said(log: Path) -> str:
    return log.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace")
