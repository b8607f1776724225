"""The connection of the bus: servers to choose from, reconnects, and servers that misbehave."""

import asyncio

import pytest

from schemas.errors import Unavailable
from services.runtime.nats import bus as bus_module
from services.runtime.nats import client as nats_client
from services.runtime.nats.bus import Delivery
from tests.kit.nats import NatsServer
from tests.kit.waiting import LIMIT_S, eventually
from tests.runtime.bus_clients import Client, accept, answer_pings, connected, pretender, refused

pytestmark = pytest.mark.usefixtures("collected")


@pytest.mark.parametrize("url", ["ws://h", "nats://", "nats://me:geheim/x@h", "nats://h:99999"])
async def test_a_url_of_no_server_is_refused(url: str) -> None:
    error = await refused(url)
    assert "cannot connect" in error
    assert "geheim" not in error


async def test_messages_arrive_in_order_after_the_server_did_not_read_for_a_while(
    own_nats: NatsServer,
) -> None:
    sizes = [200_000 if number % 3 else 20 for number in range(600)]
    resumed_at = 100  # 13 MB: far more than the sockets take
    received: list[tuple[int, int]] = []

    def receive(delivery: Delivery) -> None:
        received.append((int(delivery.data[:3]), len(delivery.data)))

    async with connected(own_nats.url) as reader, connected(own_nats.url) as writer:
        await reader.bus.subscribe("t", receive)
        assert await reader.bus.flush()
        own_nats.pause()
        for number, size in enumerate(sizes):
            assert writer.bus.publish("t", b"%03d" % number + b"x" * size)
            if number == resumed_at:
                own_nats.resume()
            if number % 7 == 0:
                await asyncio.sleep(0)
        await eventually(lambda: len(received) == len(sizes))
        assert received == [(number, size + 3) for number, size in enumerate(sizes)]


async def test_messages_from_before_a_disconnect_are_not_sent_after_it(
    own_nats: NatsServer,
) -> None:
    async with connected(own_nats.url) as client:
        own_nats.pause()
        sent = 0
        while sent < 200:  # 20 MB: far more than the sockets take
            assert client.bus.publish("old", bytes(100_000))
            sent += 1
            if sent % 20 == 0:
                await asyncio.sleep(0)
        own_nats.kill()
        await eventually(lambda: not client.bus.connected)
        assert not client.bus.publish("old", b"")
        with pytest.raises(Unavailable):
            await client.bus.request("old", b"", LIMIT_S)
        own_nats.start()
        async with connected(own_nats.url) as other:
            received: list[str] = []
            await other.bus.subscribe(">", lambda delivery: received.append(delivery.subject))
            await other.bus.flush()
            await eventually(lambda: client.reconnects == 1)
            assert client.bus.publish("new", b"")
            await eventually(lambda: "new" in received)
            assert "old" not in received


@pytest.mark.parametrize("end", [b"", b"WHAT IS THIS\r\n", b"-ERR 'Stale Connection'\r\n"])
async def test_a_server_that_falls_silent_or_sends_nonsense_costs_the_connection(
    end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "PING_INTERVAL_S", 0.05)
    monkeypatch.setattr(nats_client, "PING_INTERVAL_S", 0.05)
    visits: list[asyncio.StreamWriter] = []
    reconnected = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(writer)
        await accept(reader, writer)
        if len(visits) > 1:
            await answer_pings(reader, writer)
        await reader.readline()  # of the subscription
        writer.write(end)
        await reconnected.wait()

    async with pretender(talk) as address, connected(f"nats://{address}") as client:
        await client.bus.subscribe("t", lambda _delivery: None)
        await eventually(lambda: client.reconnects == 1)
        reconnected.set()
        assert client.bus.connected
        assert not client.fatal


async def test_a_server_that_reports_an_error_of_this_client_ends_the_process() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await reader.readline()
        writer.write(b"-ERR 'Unknown Protocol Operation'\r\n")

    async with pretender(talk) as address:
        client = Client(f"nats://{address}")
        await client.bus.connect()
        await eventually(lambda: bool(client.fatal))
        assert client.fatal == [
            "the connection to NATS was closed for good: unknown protocol operation"
        ]
        assert client.reasons("bus.closed") == ["unknown protocol operation"]
        assert not client.bus.connected
        await client.bus.close()
        assert client.reconnects == 0
