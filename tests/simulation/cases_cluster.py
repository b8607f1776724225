"""Cases on a cluster of three servers. Each has a cluster of its own."""

import asyncio

import structlog

from schemas.errors import TimedOut, Unavailable
from services.runtime.storage.kv import Bucket, BucketConfig, create_bucket
from tests.kit.waiting import until
from tests.runtime.bus_clients import Client
from tests.simulation.cases_messages import pub
from tests.simulation.nats_places import Place

CONFIG = BucketConfig(
    name="copies", description="", ttl_s=600, max_bytes=1 << 20, max_value_bytes=1000, replicas=3
)
PATIENCE_S = 40.0


async def join(at: Place) -> None:
    """Waits until the servers know each other and pass messages on."""
    addresses = {f"{host}:{port}" for host, port in at.addresses()}

    async def known() -> bool:
        wires = [await at.wire(number) for number in range(3)]
        return all(set(wire.info.get("connect_urls", ())) == addresses for wire in wires)

    await until(known)
    wires = [await at.wire(number) for number in range(3)]
    for number, wire in enumerate(wires):
        await wire.ask(b"SUB joined.%d 1\r\nSUB probe 9\r\n" % number)
    for wire in wires:
        for number in range(3):
            while b"NATS/1.0 503" in await wire.ask(pub(f"joined.{number}", b"", "probe")):
                await asyncio.sleep(0.01)


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


async def reads(bucket: Bucket, key: str) -> None:
    """Waits until a key has its value: the servers that do not lead have it a little later."""

    async def read() -> bool:
        return await bucket.get(key) == b"v"

    await until(read)


async def bucket_with_three_copies_survives_any_one_server(at: Place) -> None:
    await join(at)
    client = await at.bus()
    bucket = await made(at, client)
    await bucket.put("k", b"v")
    for number in range(3):
        await at.kill(number)
        await bucket.put(f"k{number}", b"v")
        await reads(bucket, "k")
        await reads(bucket, f"k{number}")
        await at.start(number)
        await join(at)
        await bucket.put("after", b"%d" % number)
    for number in range(3):
        await reads(bucket, f"k{number}")
