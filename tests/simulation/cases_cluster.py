"""Cases on a cluster of three servers. Each has a cluster of its own."""

import asyncio
from collections.abc import Sequence

import pytest
import structlog

from schemas.errors import TimedOut, Unavailable
from services.runtime.storage.kv import Bucket, BucketConfig, create_bucket
from tests.kit.waiting import until
from tests.runtime.bus_clients import Client
from tests.simulation.cases_messages import pub
from tests.simulation.nats_places import Place, Wire

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
