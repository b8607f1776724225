"""Every wait of a command ends when the command is interrupted, whatever it waits for at that
moment."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from schemas import subjects
from services.cli.commands.make_buckets import make_buckets
from services.cli.doctor import bus as doctor_bus
from services.cli.up import command as up
from services.cli.up.plan import make_plan
from services.cli.up.supervisor import ChildSpec
from services.runtime import bus, nats_client
from services.runtime.config import BucketsConfig, BusConfig
from services.runtime.config.loader import Sources
from tests.kit.cancellation import Work, cancel_at, cancel_everywhere
from tests.kit.nats import NatsServer
from tests.kit.waiting import LIMIT_S, eventually
from turnwire_tools import behaviour
from turnwire_tools.inspector import command as inspector
from turnwire_tools.replay import command as replay
from turnwire_tools.replay import replay_file
from turnwire_tools.tap.follow import follow
from turnwire_tools.trajectories import command as trajectories

# A connection that is cancelled while it closes is closed by the end of the process.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def same_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """`inspect` lowers its priority, which would slow down all tests that follow in this
    process."""
    monkeypatch.setattr(os, "nice", lambda _by: 0)


@pytest.fixture
async def silent(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The URL of a bus that accepts connections and never answers. No limit of time ends an attempt
    to connect."""
    monkeypatch.setattr(nats_client, "ATTEMPT_S", 600)
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(
        lambda _reader, writer: writers.append(writer), "127.0.0.1", 0
    )
    yield "nats://{}:{}".format(*server.sockets[0].getsockname())
    server.close()
    for writer in writers:
        writer.close()


def tap(url: str) -> Work:
    config = BusConfig(nats_url=url, connect_timeout_s=600.0)
    return follow(config, "tap", [subjects.ALL], lambda _message: None)


def inspect(url: str) -> Work:
    env = {"TURNWIRE_NATS_URL": url, "TURNWIRE_CONNECT_TIMEOUT_S": "600"}
    return inspector._serve(Sources({}, env, None), (), inspector.InspectorFlags(port=0))


def follow_trajectories(url: str) -> Work:
    config = BusConfig(nats_url=url, connect_timeout_s=600.0)
    return trajectories._follow(config, trajectories.Writer(None, 1.0))


def compare_behaviour(url: str) -> Work:
    config = BusConfig(nats_url=url, connect_timeout_s=600.0)
    flags = behaviour.BehaviourFlags(a="http://a", b="http://b")
    return behaviour._run_all(["task"], ["sleep", "600"], flags, config, {})


def doctor(url: str) -> Work:
    return doctor_bus.check(BusConfig(nats_url=url, connect_timeout_s=600.0), True, 0.05)


def buckets(url: str) -> Work:
    return make_buckets(BucketsConfig(bus=BusConfig(nats_url=url, connect_timeout_s=600.0)))


COMMANDS = [tap, inspect, follow_trajectories, compare_behaviour, doctor, buckets]


@pytest.mark.parametrize("command", COMMANDS)
async def test_first_waits_for_a_silent_bus_end(
    command: Callable[[str], Work], silent: str
) -> None:
    await cancel_at(lambda: command(silent), range(1, 7))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
async def test_every_wait_for_a_silent_bus_ends(
    command: Callable[[str], Work], silent: str
) -> None:
    assert await cancel_everywhere(lambda: command(silent)) >= 5


@pytest.mark.parametrize("command", COMMANDS)
async def test_first_waits_at_a_bus_end(command: Callable[[str], Work], nats: NatsServer) -> None:
    await cancel_at(lambda: command(nats.url), range(1, 21, 3))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
async def test_every_wait_at_a_bus_ends(command: Callable[[str], Work], nats: NatsServer) -> None:
    assert await cancel_everywhere(lambda: command(nats.url)) >= 20


async def test_every_wait_of_a_replay_ends() -> None:
    read = replay_file.read(
        "r", '{"replay": 1}\n{"user": "Hi."}\n["Hello"]\n{"pause_ms": 20}\n[" there."]\n'
    )
    flags = replay.ReplayFlags(api="messages", quiet=True, speed=1.0)
    assert await cancel_everywhere(lambda: replay._play_all([read], flags)) >= 15


@pytest.mark.slow
async def test_first_waits_of_up_end(
    nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"TURNWIRE_NATS_URL": nats.url, "TURNWIRE_STATE_DIR": str(tmp_path), "TURNWIRE_PORT": "0"}
    plan = make_plan(Sources({}, env, None))
    monkeypatch.setattr(up, "make_specs", lambda *_: [ChildSpec("worker-1", ["sleep", "600"])])
    monkeypatch.setattr(up, "readiness_problem", lambda _url: "starting")

    def start() -> tuple[Work, Callable[[], None]]:
        running = up._UpRun(plan)
        return running.run(), running._on_signal

    try:
        await cancel_at(start, range(1, 21, 2))
    finally:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(signum)


async def test_hanging_bus_does_not_delay_the_end(
    own_nats: NatsServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for method in (bus.Bus.flush, bus.Bus.close):
        monkeypatch.setattr(method, "__defaults__", (600.0,))
    task = asyncio.create_task(tap(own_nats.url))
    await eventually(lambda: "listening" in capsys.readouterr().err)
    own_nats.pause()
    task.cancel()
    async with asyncio.timeout(LIMIT_S):
        assert await task == 0
    own_nats.resume()
