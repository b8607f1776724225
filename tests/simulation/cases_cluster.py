"""Cases on a cluster of three servers. Each has a cluster of its own."""

import asyncio
import json
from collections.abc import Sequence

import nats.errors
import pytest
import structlog
from nats.aio.client import Client as NatsPy

from schemas.errors import TimedOut, Unavailable
from services.runtime.storage.kv import Bucket, BucketConfig, create_bucket
from tests.kit.waiting import eventually, until
from tests.runtime.bus_clients import Client
from tests.simulation.cases_messages import msg, nobody, pub
from tests.simulation.nats_places import Place, Wire, listen, settle

CONFIG = BucketConfig(
    name="copies", description="", ttl_s=600, max_bytes=1 << 20, max_value_bytes=1000, replicas=3
)
PATIENCE_S = 40.0
DIRECT_S = 5.0
"""Time after which all servers of a new stream answer readers."""
NOBODY = "NATS/1.0 503"


async def every_server_knows_the_others(at: Place) -> None:
    addresses = {f"{host}:{port}" for host, port in at.addresses()}

    async def known() -> bool:
        return all(
            [
                set((await at.wire(number)).info.get("connect_urls", ())) == addresses
                for number in range(3)
            ]
        )

    await until(known)


async def join(at: Place, numbers: Sequence[int] = (0, 1, 2)) -> None:
    """Waits until each server passes messages on to the others."""
    if len(numbers) == 3:
        await every_server_knows_the_others(at)
    wires = {number: await at.wire(number) for number in numbers}
    for number, wire in wires.items():
        await wire.ask(b"SUB joined.%d 1\r\n" % number)
    for number in numbers:
        for wire in wires.values():
            await served(wire, f"joined.{number}")


async def served(wire: Wire, subject: str) -> None:
    """Waits until a subject has a subscriber, as seen from a server."""
    await wire.ask(b"SUB probe 9\r\n")
    while NOBODY in (await wire.ask(pub(subject, b"", "probe"))).decode():
        await asyncio.sleep(0.01)
    await wire.ask(b"UNSUB 9\r\n")


async def made(at: Place, client: Client) -> Bucket:
    """A bucket with three copies. A cluster that just started takes some seconds for it."""

    async def create() -> bool:
        try:
            await create_bucket(client.bus, CONFIG)
        except (TimedOut, Unavailable):
            return False
        return True

    await until(create)
    log = structlog.wrap_logger(structlog.PrintLogger(), processors=[client.log])
    return Bucket(client.bus, CONFIG, log, patience_s=PATIENCE_S)


async def reads(bucket: Bucket, key: str, value: bytes) -> None:
    """Waits until a key has a value: the servers that do not lead have it a little later."""

    async def read() -> bool:
        return await bucket.get(key) == value

    await until(read)


async def messages_reach_subscribers_at_other_servers_in_order(at: Place) -> None:
    await join(at)
    readers = [await listen(await at.client(number), "far.>") for number in range(3)]
    sender = await at.client(0)
    while not all(readers):  # until each is known at the sender's server
        await sender.publish("far.probe", b"")
        await asyncio.sleep(0.01)
    for number in range(300):
        await sender.publish(f"far.{number % 3}", b"%d" % number)
    for reader in readers:
        await eventually(lambda reader=reader: reader[-1].data == b"299")  # type: ignore[misc]
        assert [one.data for one in reader if one.data] == [b"%d" % number for number in range(300)]


async def subject_without_a_subscriber_at_any_server_has_no_responder(at: Place) -> None:
    await join(at)
    asker, other = await at.wire(0), await at.wire(1)
    await asker.ask(b"SUB answers 1\r\n")
    assert await asker.ask(pub("question", b"", "answers")) == nobody("answers", 1, "question")
    await other.ask(b"SUB question 1\r\n")
    await served(asker, "question")
    assert await asker.ask(pub("question", b"x", "answers")) == b""
    while b"x" not in await other.ask():
        await asyncio.sleep(0.01)
    await other.ask(pub("answers", b"y"))

    async def answered() -> bool:
        return await asker.ask() == msg("answers", 1, b"y")

    await until(answered)
    await other.ask(b"UNSUB 1\r\n")

    async def unanswered() -> bool:
        return await asker.ask(pub("question", b"", "answers")) == nobody("answers", 1, "question")

    await until(unanswered)


async def clients_of_a_killed_server_go_to_another(at: Place) -> None:
    await join(at)
    moving, staying = await at.bus(0), await at.bus(1)
    received: list[bytes] = []
    await moving.bus.subscribe("moved", lambda delivery: received.append(delivery.data))
    await at.kill(0)
    await eventually(lambda: moving.reconnects == 1)

    def arrives() -> bool:
        staying.bus.publish("moved", b"x")
        return bool(received)

    await eventually(arrives)
    assert staying.reconnects == 0
    assert not moving.fatal


async def bucket_with_three_copies_survives_any_one_server(at: Place) -> None:
    await join(at)
    client = await at.bus()
    bucket = await made(at, client)
    await bucket.put("k", b"0")
    for number in range(3):
        await at.kill(number)
        await bucket.put(f"k{number}", b"v")
        await reads(bucket, "k", b"0")
        await reads(bucket, f"k{number}", b"v")
        await at.start(number)
        await join(at)
        await bucket.put("after", b"%d" % number)
    for number in range(3):
        await reads(bucket, f"k{number}", b"v")


async def stored_message_is_stored_once_and_reaches_every_subscriber_once(at: Place) -> None:
    await join(at)
    await made(at, await at.bus())
    clients = [await at.client(number) for number in range(3)]
    watchers = [await listen(client, "$KV.copies.*") for client in clients]
    for client in clients:

        async def is_served(client: NatsPy = client) -> bool:
            try:
                await client.request("$KV.copies.probe", b"", timeout=2)
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                return False
            return all(watchers)

        await until(is_served)
    seqs = []
    for number in range(30):
        answer = await clients[number % 3].request("$KV.copies.k", b"%d" % number, timeout=30)
        seqs.append(json.loads(answer.data)["seq"])
    assert seqs == list(range(seqs[0], seqs[0] + 30))
    for watcher in watchers:  # the three publishers' messages may overtake each other
        await eventually(lambda watcher=watcher: sum(bool(one.data) for one in watcher) >= 30)  # type: ignore[misc]
    await asyncio.sleep(0.1)
    for watcher in watchers:
        assert sorted(int(one.data) for one in watcher if one.data) == list(range(30))


async def bucket_without_a_majority_takes_nothing_until_it_has_one(at: Place) -> None:
    await join(at)
    client = await at.bus(0)
    bucket = await made(at, client)
    hasty = Bucket(
        client.bus, CONFIG, structlog.wrap_logger(structlog.PrintLogger(), processors=[client.log])
    )
    for one in (bucket, hasty):  # a bucket that was never found counts as missing
        await one.put("k", b"v")
    await asyncio.sleep(DIRECT_S)
    await at.kill(1)
    await at.kill(2)
    with pytest.raises((TimedOut, Unavailable)):
        await hasty.put("k", b"w")

    async def refused() -> bool:
        """The leader has given up: there is nobody to store anything."""
        try:
            await client.bus.request("$KV.copies.k", b"x", 2.0)
        except Unavailable:
            return True
        except TimedOut:
            pass
        return False

    await until(refused)
    with pytest.raises(Unavailable):
        await hasty.put("k", b"w")
    await reads(hasty, "k", b"v")  # the server that is left still has it
    await at.start(1)
    await bucket.put("k", b"w")
    await reads(bucket, "k", b"w")


async def suspended_server_is_silent_and_another_takes_its_streams(at: Place) -> None:
    await join(at)
    client = await at.bus(0)
    bucket = await made(at, client)
    await bucket.put("k", b"v")
    for number in (1, 2):
        await at.suspend(number)
        await bucket.put("k", b"%d" % number)
        await at.resume(number)
        await reads(bucket, "k", b"%d" % number)
    assert client.reconnects == 0
    other = await at.client(1)
    await settle(other)
    with pytest.raises(nats.errors.NoRespondersError):
        await other.request("nobody.at.all", b"", timeout=30)
