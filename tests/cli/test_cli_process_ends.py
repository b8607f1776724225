"""`turnwire up` announces on the bus that a killed process has ended."""

import asyncio
import socket
from collections.abc import AsyncIterator

import msgspec
import pytest

from schemas import subjects
from schemas.control import Heartbeat, ModelCard
from services.cli.observer import observing
from services.cli.up.process_ends import ProcessEnds
from services.runtime.config.service import BusConfig
from services.runtime.nats.bus import Bus, Delivery
from tests.kit.nats import NatsServer
from tests.kit.waiting import LIMIT_S, eventually

HERE = Heartbeat("worker", "w-1", 7, host=socket.gethostname(), pid=4242)


@pytest.fixture
async def bus(nats: NatsServer) -> AsyncIterator[Bus]:
    async with observing(BusConfig(nats_url=nats.url), "test") as bus:
        yield bus


def publish(bus: Bus, heartbeat: Heartbeat) -> None:
    subject = subjects.heartbeat(heartbeat.stage, heartbeat.id)
    bus.publish(subject, msgspec.json.encode(heartbeat))


async def test_end_of_a_killed_process_is_announced_in_its_place(
    nats: NatsServer, bus: Bus
) -> None:
    received: list[Heartbeat] = []

    def receive(delivery: Delivery) -> None:
        received.append(msgspec.json.decode(delivery.data, type=Heartbeat))

    await bus.subscribe(subjects.own_heartbeats(), receive)
    ends = ProcessEnds(BusConfig(nats_url=nats.url))
    following = asyncio.create_task(ends.follow())
    elsewhere = msgspec.structs.replace(HERE, id="w-2", host="elsewhere", pid=4243)
    twin = msgspec.structs.replace(HERE, id="w-3")  # in another container

    def announced() -> bool:
        publish(bus, HERE)
        publish(bus, elsewhere)
        publish(bus, twin)
        for id in ("w-1", "w-2", "w-9"):
            ends.announce(id)
        return any(heartbeat.leaving for heartbeat in received)

    await eventually(announced)
    (left,) = {(one.stage, one.id) for one in received if one.leaving}
    assert left == ("worker", "w-1")
    assert all(one.number > HERE.number for one in received if one.leaving)
    following.cancel()


async def test_nothing_is_announced_without_a_bus() -> None:
    config = BusConfig(nats_url="nats://127.0.0.1:1", connect_timeout_s=0.01)
    ends = ProcessEnds(config)
    await ends.follow()
    ends.announce("w-1")


async def test_the_window_of_a_model_is_that_of_its_heartbeats(nats: NatsServer, bus: Bus) -> None:
    ends = ProcessEnds(BusConfig(nats_url=nats.url))
    assert await ends.window("m", 0.0) == 0
    following = asyncio.create_task(ends.follow())
    waiting = asyncio.create_task(ends.window("m", LIMIT_S))
    cards = [ModelCard("other", max_model_len=9), ModelCard("m", max_model_len=4096)]

    def known() -> bool:
        publish(bus, HERE)  # of a stage without models
        publish(bus, msgspec.structs.replace(HERE, id="w-2", models=cards))
        return waiting.done()

    await eventually(known)
    assert await waiting == 4096
    following.cancel()


async def test_a_heartbeat_that_cannot_be_read_is_left_to_the_stages_logs(
    bus: Bus, capfd: pytest.CaptureFixture[str]
) -> None:
    ends = ProcessEnds(BusConfig())
    subject = subjects.heartbeat("worker", "w-1")
    ends.receive(Delivery(bus, subject, b'{"a":', ""))
    assert "".join(capfd.readouterr()) == ""
