"""SIGINT and SIGTERM end a command wherever it waits, with its status and without a traceback.
Without the signal, every wait here lasts ten minutes."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence

import pytest

from services.runtime.config.service import BusConfig
from tests.kit.nats import NatsServer
from tests.kit.stack import MAIN
from tests.kit.waiting import LIMIT_S, eventually
from turnwire_tools.tap.follow import follow


async def start(argv: Sequence[str], program: Sequence[str] = MAIN[1:]) -> Process:
    def default() -> None:  # a shell that runs the tests in the background ignores SIGINT
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return await asyncio.create_subprocess_exec(
        sys.executable, *program, *argv, stdout=PIPE, stderr=PIPE, preexec_fn=default
    )


async def end(process: Process, signum: int) -> tuple[int | None, bytes]:
    """Sends the signal; returns status and stderr."""
    process.send_signal(signum)
    async with asyncio.timeout(LIMIT_S):
        _, stderr = await process.communicate()
    return process.returncode, stderr


async def test_command_ends_at_a_silent_server() -> None:
    connected = asyncio.Event()
    server = await asyncio.start_server(lambda *_: connected.set(), "127.0.0.1", 0)
    url = "nats://{}:{}".format(*server.sockets[0].getsockname())
    process = await start(["tap", "--nats-url", url, "--connect-timeout-s", "600"])
    async with asyncio.timeout(LIMIT_S):
        await connected.wait()
    status, stderr = await end(process, signal.SIGTERM)
    assert (status, b"Traceback" in stderr) == (130, False), stderr.decode()
    server.close()


async def test_command_that_runs_until_it_is_interrupted_has_status_0(
    nats: NatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    task = asyncio.create_task(follow(BusConfig(nats_url=nats.url), "tap", ["a"], print))
    await eventually(lambda: "listening" in capsys.readouterr().err)
    task.cancel()
    assert await task == 0


async def test_inspector_without_a_bus_prints_no_address() -> None:
    inspect = await start(["inspect", "--port", "0", "--nats-url", "nats://127.0.0.1:1"])
    async with asyncio.timeout(LIMIT_S):
        stdout, stderr = await inspect.communicate()
    assert (inspect.returncode, stdout) == (1, b"")
    assert b"127.0.0.1:1" in stderr


async def test_tap_of_one_turn_says_that_it_waits_for_it(nats: NatsServer) -> None:
    tap = await start(["tap", "--request", "req_none", "--nats-url", nats.url])
    assert tap.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        assert b"listening on" in await tap.stderr.readline()
        assert b"only what comes from now on" in await tap.stderr.readline()
    assert (await end(tap, signal.SIGINT))[0] == 0


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


async def test_command_ends_while_no_name_server_answers() -> None:
    """The system's `getaddrinfo` ignores signals: in the main thread no handler runs, another
    thread does not end."""
    process = await start(["connect", "claude", "--url", "http://somewhere"], ["-c", HANGS])
    assert process.stderr is not None
    assert await process.stderr.readline() == b"waits\n"
    assert await end(process, signal.SIGINT) == (130, b"")
