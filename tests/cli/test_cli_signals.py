"""SIGINT and SIGTERM end a command wherever it waits, with its status and without a traceback.
Without the signal, every wait here lasts ten minutes."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.cli.running import MAIN
from tests.kit.waiting import LIMIT_S

FILE = '{"replay": 1}\n{"user": "Hi."}\n["Hello"]\n'


class SilentServer:
    """Accepts connections and never answers."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self.address = ""
        self._writers: list[asyncio.StreamWriter] = []

    def accept(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.connected.set()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@pytest.fixture
async def silent() -> AsyncIterator[SilentServer]:
    silent = SilentServer()
    server = await asyncio.start_server(silent.accept, "127.0.0.1", 0)
    silent.address = "{}:{}".format(*server.sockets[0].getsockname())
    yield silent
    silent.close()
    server.close()


BUS = ("--nats-url", "nats://{address}", "--connect-timeout-s", "600")
COMMANDS: Mapping[str, Sequence[str]] = {
    "tap": ("tap", *BUS),
    "connect": ("connect", "claude", "--url", "http://{address}"),
    "replay": ("replay", "{file}", "--url", "http://{address}"),
    "up": ("up", "--port", "0", "--state-dir", "{state}", *BUS[:2]),
}


async def start(
    argv: Sequence[str],
    silent: SilentServer,
    directory: Path,
    *shell: str,
    program: Sequence[str] = MAIN[1:],
) -> Process:
    file = directory / "replay.jsonl"
    file.write_text(FILE)
    values = {"address": silent.address, "file": file, "state": directory / "state"}
    command = [*shell, sys.executable, *program, *(part.format(**values) for part in argv)]

    def default() -> None:  # a shell that runs the tests in the background ignores SIGINT
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=PIPE, preexec_fn=default
    )


async def end(process: Process, signum: int) -> tuple[int | None, bytes]:
    """Sends the signal; returns status and stderr."""
    process.send_signal(signum)
    async with asyncio.timeout(LIMIT_S):
        _, stderr = await process.communicate()
    return process.returncode, stderr


@pytest.mark.parametrize(("name", "signum"), [("tap", signal.SIGTERM), ("up", signal.SIGINT)])
async def test_command_ends_at_a_silent_server(
    name: str, signum: int, silent: SilentServer, tmp_path: Path, demo_dir: Path
) -> None:
    process = await start(COMMANDS[name], silent, tmp_path)
    async with asyncio.timeout(LIMIT_S):
        await silent.connected.wait()
    status, stderr = await end(process, signum)
    assert (status, b"Traceback" in stderr) == (130, False), stderr.decode()


async def test_background_command_of_a_shell_ends(silent: SilentServer, tmp_path: Path) -> None:
    ignoring = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
    process = await start(COMMANDS["tap"], silent, tmp_path, *ignoring)
    async with asyncio.timeout(LIMIT_S):
        await silent.connected.wait()
    assert await end(process, signal.SIGINT) == (130, b"")


HANGS = """
import ctypes, socket, sys

mutex = ctypes.create_string_buffer(64)


def never(*_arguments, **_options):
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
    print("waits", file=sys.stderr, flush=True)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)


socket.getaddrinfo = never
from services.cli.main import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("name", ["connect", "replay"])
async def test_command_ends_while_no_name_server_answers(
    name: str, silent: SilentServer, tmp_path: Path
) -> None:
    """The system's `getaddrinfo` ignores signals: in the main thread no handler runs, another
    thread does not end."""
    argv = [part.replace("{address}", "somewhere") for part in COMMANDS[name]]
    process = await start(argv, silent, tmp_path, program=["-c", HANGS])
    assert process.stderr is not None
    assert await process.stderr.readline() == b"waits\n"
    assert await end(process, signal.SIGINT) == (130, b"")
