"""A case on a cluster of three servers."""

import asyncio

from schemas.errors import TimedOut, Unavailable
from tests.kit.waiting import until
from tests.simulation.cases_messages import pub
from tests.simulation.cases_streams import bucket, create
from tests.simulation.nats_places import Place

CONFIG = {"ttl_s": 600.0, "max_value_bytes": 1000, "replicas": 3}


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


async def bucket_with_three_copies_survives_any_one_server(at: Place) -> None:
    await join(at)
    client = await at.bus()

    async def created() -> bool:
        """A cluster that just started takes some seconds for it."""
        try:
            await create(client, "copies", **CONFIG)
        except (TimedOut, Unavailable):
            return False
        return True

    await until(created)
    copies = bucket(client, "copies", patience_s=40.0, **CONFIG)

    async def reads(key: str) -> None:
        """The servers that do not lead have a value a little later."""

        async def read() -> bool:
            return await copies.get(key) == b"v"

        await until(read)

    await copies.put("k", b"v")
    for number in range(3):
        await at.kill(number)
        await copies.put(f"k{number}", b"v")
        await reads("k")
        await reads(f"k{number}")
        await at.start(number)
        await join(at)
        await copies.put("after", b"%d" % number)
    for number in range(3):
        await reads(f"k{number}")
