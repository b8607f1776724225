"""What the model of NATS does when a fault is drawn that real servers are not tested with."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import structlog

from schemas.errors import TimedOut, Unavailable
from services.runtime.storage.kv import Bucket, create_bucket
from tests.kit.waiting import eventually
from tests.simulation.cases_cluster import CONFIG, every_server_knows_the_others, join, made, reads
from tests.simulation.cases_messages import pub
from tests.simulation.cases_streams import opened
from tests.simulation.nats_places import Case, ModelServers, Place, Wire, listen, settle

SEEDS = pytest.mark.parametrize("seed", range(5))


def run(seed: int, case: Callable[[ModelServers], Awaitable[None]], servers: int = 1) -> None:
    """Runs a case that reaches into the model."""
    model = ModelServers(servers, seed=seed)

    async def whole(_: Place) -> None:
        await case(model)

    model.run(whole)


@SEEDS
def test_machine_that_fails_loses_the_last_writes_and_their_numbers(seed: int) -> None:
    async def case(at: ModelServers) -> None:
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

    run(seed, case)


@SEEDS
def test_full_disk_stops_writes_until_the_server_is_started_again(seed: int) -> None:
    async def case(at: ModelServers) -> None:
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

    run(seed, case)


@SEEDS
def test_value_expires_at_its_time(seed: int) -> None:
    async def case(at: ModelServers) -> None:
        bucket = await opened(await at.bus(), "b", ttl_s=300)
        await bucket.put("k", b"v")
        await asyncio.sleep(299)
        assert await bucket.get("k") == b"v"
        await asyncio.sleep(2)
        assert await bucket.get("k") is None

    run(seed, case)


@SEEDS
def test_store_that_hangs_takes_nothing_and_is_read(seed: int) -> None:
    async def case(at: ModelServers) -> None:
        bus = await at.bus()
        bucket = await opened(bus, "b")
        await bucket.put("k", b"1")
        at.cluster.hangs = True
        with pytest.raises(TimedOut):
            await bucket.put("k", b"2")
        with pytest.raises(TimedOut):
            await opened(bus, "b")
        assert await bucket.get("k") == b"1"
        at.cluster.hangs = False
        await bucket.put("k", b"3")
        assert await bucket.get("k") == b"3"

    run(seed, case)


@SEEDS
def test_share_of_messages_is_lost(seed: int) -> None:
    async def case(at: ModelServers) -> None:
        client = await at.client()
        received, others = await listen(client, "tw.t"), await listen(client, "other")
        at.cluster.losses.append(("tw.", 0.5))
        for _ in range(200):
            await client.publish("tw.t", b"")
            await client.publish("other", b"")
        await settle(client)
        await eventually(lambda: len(others) == 200)
        assert 50 < len(received) < 150

    run(seed, case)


@SEEDS
def test_partition_between_servers_delays_messages_and_loses_none(seed: int) -> None:
    async def case(at: ModelServers) -> None:
        await join(at)
        sender, reader = await at.client(0), await at.client(1)
        received = await listen(reader, "far")
        wire = await at.wire(0)
        await wire.ask(b"SUB probe 1\r\n")
        while await wire.ask(pub("far", b"", "probe")):
            await asyncio.sleep(0.01)
        await eventually(lambda: bool(received))
        at.network.cut.add(frozenset(("n0", "n1")))
        for number in range(50):
            await sender.publish("far", b"%d" % number)
        await asyncio.sleep(30)
        assert len(received) == 1
        at.network.heal("n0", "n1")
        await eventually(lambda: len(received) == 51)
        assert [one.data for one in received[1:]] == [b"%d" % number for number in range(50)]

    run(seed, case, 3)


@SEEDS
def test_frozen_server_is_dropped_after_three_pings_and_comes_back(seed: int) -> None:
    async def case(at: ModelServers) -> None:
        await join(at)
        wire = await at.wire(0)
        await wire.ask(b"SUB probe 1\r\n")
        await (await at.wire(1)).ask(b"SUB frozen 1\r\n")
        while await wire.ask(pub("frozen", b"", "probe")):
            await asyncio.sleep(0.01)
        await at.suspend(1)
        frozen_at = at.loop.now
        while await answers(wire):
            await asyncio.sleep(0.5)
        assert 40 <= at.loop.now - frozen_at <= 3 * at.cluster.ping_s + 1
        await at.resume(1)
        await every_server_knows_the_others(at)

    async def answers(wire: Wire) -> bool:
        """Whether the subject still seems to have a subscriber."""
        received = await wire.ask(pub("frozen", b"", "probe"))
        if b"PING" in received:
            wire.write(b"PONG\r\n")
        return b"503" not in received

    run(seed, case, 3)


@SEEDS
def test_leader_cut_from_the_others_gives_no_answer_until_another_leads(seed: int) -> None:
    async def case(at: ModelServers) -> None:
        await join(at)
        client = await at.bus(0)
        bucket = await made(at, client)
        await bucket.put("k", b"1")
        hasty = Bucket(
            client.bus,
            CONFIG,
            structlog.wrap_logger(structlog.PrintLogger(), processors=[client.log]),
        )
        await hasty.put("k", b"2")
        group = at.cluster.groups["KV_copies"]
        group.leader = "n0"
        at.network.cut.add(frozenset(("n0", "n1")))
        at.network.cut.add(frozenset(("n0", "n2")))
        with pytest.raises((TimedOut, Unavailable)):
            await hasty.put("k", b"3")
        await asyncio.sleep(15)
        assert group.leader in ("n1", "n2")
        other = await at.bus(1, 2)
        await (await made(at, other)).put("k", b"4")
        at.network.heal("n0", "n1")
        at.network.heal("n0", "n2")
        await asyncio.sleep(5)
        await hasty.put("l", b"5")
        await reads(hasty, "k", b"4")

    run(seed, case, 3)


@SEEDS
def test_server_that_does_not_lead_is_a_little_late(seed: int) -> None:
    async def case(at: ModelServers) -> None:
        await join(at)
        client = await at.bus(0)
        bucket = await made(at, client)
        await asyncio.sleep(5)
        late = 0
        for number in range(100):
            await bucket.put("k", b"%d" % number)
            late += await bucket.get("k") != b"%d" % number
            await asyncio.sleep(0.01)
            assert await bucket.get("k") == b"%d" % number
        assert 0 < late < 60

    run(seed, case, 3)


@SEEDS
def test_bucket_may_be_emptied_or_removed(seed: int) -> None:
    async def case(at: ModelServers) -> None:
        bus = await at.bus()
        bucket = await opened(bus, "b")
        await bucket.put("k", b"v")
        at.cluster.empty("KV_b")
        assert await bucket.get("k") is None
        await bucket.put("k", b"v")
        assert await bucket.get("k") == b"v"
        at.cluster.remove("KV_b")
        with pytest.raises(Unavailable):
            await bucket.get("k")
        await create_bucket(bus.bus, bucket._config)
        assert await bucket.get("k") is None

    run(seed, case)


def test_same_seed_gives_the_same_times() -> None:
    async def case(at: Place) -> None:
        await join(at)
        await (await made(at, await at.bus(0))).put("k", b"v")

    def ends(seed: int, case: Case) -> float:
        model = ModelServers(3, seed=seed)
        model.run(case)
        return model.loop.now

    assert len({ends(1, case) for _ in range(3)}) == 1
