"""Every wait of a command ends when the command is interrupted, whatever it waits for at that
moment."""

import asyncio
import os
from collections.abc import Callable

import pytest

from schemas import subjects
from services.cli.commands.make_buckets import make_buckets
from services.cli.doctor import bus as doctor_bus
from services.runtime import bus
from services.runtime.config import BucketsConfig, BusConfig
from services.runtime.config.loader import Sources
from tests.kit.cancellation import Work, cancel_at, cancel_everywhere
from tests.kit.nats import NatsServer
from tests.kit.waiting import LIMIT_S, eventually
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


def tap(url: str) -> Work:
    config = BusConfig(nats_url=url, connect_timeout_s=600.0)
    return follow(config, "tap", [subjects.ALL], lambda _message: None)


def inspect(url: str) -> Work:
    env = {"TURNWIRE_NATS_URL": url, "TURNWIRE_CONNECT_TIMEOUT_S": "600"}
    return inspector._serve(Sources({}, env, None), (), inspector.InspectorFlags(port=0))


def follow_trajectories(url: str) -> Work:
    config = BusConfig(nats_url=url, connect_timeout_s=600.0)
    return trajectories._follow(config, trajectories.Writer(None, 1.0))


def doctor(url: str) -> Work:
    return doctor_bus.check(BusConfig(nats_url=url, connect_timeout_s=600.0), True, 0.05)


def buckets(url: str) -> Work:
    return make_buckets(BucketsConfig(bus=BusConfig(nats_url=url, connect_timeout_s=600.0)))


COMMANDS = [tap, inspect, follow_trajectories, doctor, buckets]


@pytest.mark.parametrize("command", COMMANDS)
async def test_first_waits_at_a_bus_end(command: Callable[[str], Work], nats: NatsServer) -> None:
    await cancel_at(lambda: command(nats.url), range(1, 21, 4))


async def test_every_wait_of_a_replay_ends() -> None:
    read = replay_file.read(
        "r", '{"replay": 1}\n{"user": "Hi."}\n["Hello"]\n{"pause_ms": 20}\n[" there."]\n'
    )
    flags = replay.ReplayFlags(api="messages", quiet=True, speed=1.0)
    assert await cancel_everywhere(lambda: replay._play_all([read], flags)) >= 15


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
