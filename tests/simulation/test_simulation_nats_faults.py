"""What the model of NATS and its network do when a fault is drawn that real servers are not tested
with."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from schemas.errors import TimedOut
from tests.kit.waiting import eventually
from tests.simulation.cases_messages import pub
from tests.simulation.cases_streams import opened
from tests.simulation.nats_places import ModelServers, Place, listen, settle


def in_model(case: Callable[[ModelServers], Awaitable[None]]) -> Callable[[], None]:
    """Makes a test of a case that reaches into the model."""

    def test() -> None:
        model = ModelServers()

        async def whole(_: Place) -> None:
            await case(model)

        model.run(whole)

    return test


@in_model
async def test_machine_that_fails_loses_the_last_writes_and_their_numbers(at: ModelServers) -> None:
    bus = await at.bus()
    bucket = await opened(bus, "b")
    await bucket.put("early", b"1")
    await asyncio.sleep(10)
    await bucket.put("late", b"1")
    await bucket.put("early", b"2")
    at.cluster.lose_writes(5.0)
    assert await bucket.get("late") is None
    assert await bucket.get("early") is None, "the value that was replaced is gone, too"
    await bucket.put("late", b"2")
    message = await bus.bus.jetstream(
        lambda js: js.get_last_msg("KV_b", "$KV.b.>", direct=True), 5.0
    )
    assert message.seq == 2


@in_model
async def test_full_disk_stops_writes_until_the_server_is_started_again(at: ModelServers) -> None:
    bus = await at.bus()
    bucket, other = await opened(bus, "b"), await opened(bus, "m", storage="memory")
    await bucket.put("k", b"1")
    at.cluster.disk_full = True
    for _ in range(2):
        with pytest.raises(TimedOut):
            await bucket.put("k", b"2")
        await other.put("k", b"2")
        assert await bucket.get("k") == b"1"
        at.cluster.disk_full = False
    await at.kill()
    await at.start()
    await eventually(lambda: bus.reconnects == 1)
    await bucket.put("k", b"3")
    assert await bucket.get("k") == b"3"


@in_model
async def test_share_of_messages_is_lost(at: ModelServers) -> None:
    client = await at.client()
    received, others = await listen(client, "tw.t"), await listen(client, "other")
    at.cluster.losses.append(("tw.", 0.5))
    for _ in range(200):
        await client.publish("tw.t", b"")
        await client.publish("other", b"")
    await settle(client)
    await eventually(lambda: len(others) == 200)
    assert 50 < len(received) < 150


@in_model
async def test_messages_of_before_and_during_a_cut_arrive_once_and_in_order(
    at: ModelServers,
) -> None:
    sender, reader = await at.wire(), await at.client()
    received = await listen(reader, "cut")
    sent = [b"%d" % number for number in range(300)]
    for data in sent[:200]:
        sender.write(pub("cut", data))
    at.network.cut.add(frozenset({"n0"}))
    for data in sent[200:]:
        sender.write(pub("cut", data))
    await asyncio.sleep(10)
    assert received == []
    at.network.heal("n0")
    await eventually(lambda: len(received) == len(sent))
    assert [message.data for message in received] == sent


@in_model
async def test_lost_machine_closes_no_connection_until_another_takes_its_place(
    at: ModelServers,
) -> None:
    wire = await at.wire()
    await wire.ask()
    await at.kill(silently=True)
    rest = asyncio.ensure_future(wire.rest())
    await asyncio.sleep(50)
    assert not rest.done()
    await at.start()
    wire.write(b"PING\r\n")
    assert await rest == b"<end>"
