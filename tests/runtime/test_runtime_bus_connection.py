"""The connection of the bus: servers to choose from, reconnects, and servers that misbehave."""

import asyncio
from pathlib import Path

import pytest

from schemas.errors import Unavailable
from services.runtime import bus as bus_module
from services.runtime import nats_client
from services.runtime.bus import WAIT_S
from tests.kit.nats import NatsServer, free_port
from tests.kit.waiting import eventually
from tests.runtime.bus_clients import (
    LONG_S,
    Client,
    accept,
    answer_pings,
    connected,
    info,
    pretender,
    refused,
    serving,
)

pytestmark = pytest.mark.usefixtures("collected")


async def test_a_client_reports_at_once_and_only_once_that_it_waits_for_a_server() -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    client = Client(url.replace("//", "//user:secret@"), connect_timeout_s=LONG_S)
    connecting = asyncio.create_task(client.bus.connect())
    await eventually(lambda: bool(client.log.entries))
    await asyncio.sleep(3 * WAIT_S[1])
    assert not connecting.done()
    connecting.cancel()
    waits = [(entry["event"], entry["url"], entry["limit_s"]) for entry in client.log.entries]
    assert waits == [("bus.waiting", url.replace("//", "//***@"), LONG_S)]


async def test_a_deadline_holds_when_it_comes_together_with_a_refusal() -> None:
    # many at once and soon: some meet the same tick as the refusal
    url = f"nats://127.0.0.1:{free_port()}"
    clients = [Client(url, connect_timeout_s=0.0005 + 0.0002 * number) for number in range(50)]
    async with asyncio.timeout(LONG_S):
        ends = await asyncio.gather(
            *(client.bus.connect() for client in clients), return_exceptions=True
        )
    assert {type(end) for end in ends} == {Unavailable}


@pytest.mark.parametrize("url", ["ws://h", "nats://", "nats://me:geheim/x@h", "nats://h:99999"])
async def test_a_url_of_no_server_is_refused(url: str) -> None:
    error = await refused(url)
    assert "cannot connect" in error
    assert "geheim" not in error


async def test_the_next_server_is_tried_and_the_others_of_a_cluster_are_found(
    nats_binary: str, tmp_path: Path
) -> None:
    routes = [free_port(), free_port()]
    configs = [
        f'server_name: s{own}\ncluster {{ name: c, listen: "127.0.0.1:{own}", routes: ["nats://127.0.0.1:{other}"] }}\n'
        'authorization { user: "me", password: "secret" }'
        for own, other in (routes, reversed(routes))
    ]
    with serving(nats_binary, tmp_path, configs[1]):
        with serving(nats_binary, tmp_path, configs[0]) as first:
            await eventually(lambda: len(info(first).get("connect_urls", [])) == 2, LONG_S)
            client = Client(f"nats://127.0.0.1:{free_port()}", f"nats://me:secret@{first}")
            await client.bus.connect()
        await eventually(lambda: client.reconnects == 1, LONG_S)
        await client.works()
        await client.bus.close()


async def test_subscriptions_survive_the_server(own_nats: NatsServer) -> None:
    async with connected(own_nats.url) as client:
        client.bus.on_reconnect.insert(0, lambda: 1 // 0)  # keeps no other from the event
        received: list[bytes] = []
        await client.bus.subscribe("kept", lambda delivery: received.append(delivery.data))
        ended = await client.bus.subscribe("ended", lambda delivery: received.append(delivery.data))
        own_nats.kill()
        await eventually(lambda: not client.bus.connected, LONG_S)
        await client.bus.flush()
        await ended.stop()
        await client.bus.subscribe("new", lambda delivery: received.append(delivery.data))
        own_nats.start()
        await eventually(lambda: client.reconnects == 1, LONG_S)
        for subject in ("kept", "ended", "new"):
            assert client.bus.publish(subject, subject.encode())
        await client.works()
        assert received == [b"kept", b"new"]
        assert len(client.reasons("bus.disconnected")) == 1


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
        await eventually(lambda: not client.bus.connected, LONG_S)
        assert not client.bus.publish("old", b"")
        with pytest.raises(Unavailable):
            await client.bus.request("old", b"", LONG_S)
        own_nats.start()
        async with connected(own_nats.url) as other:
            received: list[str] = []
            await other.bus.subscribe(">", lambda delivery: received.append(delivery.subject))
            await other.bus.flush()
            await eventually(lambda: client.reconnects == 1, LONG_S)
            assert client.bus.publish("new", b"")
            await eventually(lambda: "new" in received, LONG_S)
            assert "old" not in received


ENDS = {
    "reset": b"",
    "silence": b"",
    "nonsense": b"WHAT IS THIS\r\n",
    "stale": b"-ERR 'Stale Connection'\r\n",
}


@pytest.mark.parametrize("end", ENDS)
async def test_lost_connection_leaves_no_task(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(bus_module, "PING_INTERVAL_S", 0.05)
    monkeypatch.setattr(nats_client, "PING_INTERVAL_S", 0.05)
    visits: list[asyncio.StreamWriter] = []
    ended = asyncio.Event()
    reconnected = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(writer)
        await accept(reader, writer)
        if len(visits) > 1:
            await answer_pings(reader, writer)
        await ended.wait()
        writer.write(ENDS[end])
        if end == "reset":
            writer.transport.abort()
        # Tasks of the client wait until what it wrote is taken, or until this connection ends.
        await reconnected.wait()

    def tasks() -> int:
        return sum(
            getattr(task.get_coro(), "__qualname__", "").startswith(("Client.", "Subscription."))
            for task in asyncio.all_tasks()
        )

    async with pretender(talk) as address:
        client = Client(f"nats://{address}")
        await client.bus.connect()
        for number in range(5):
            await client.bus.subscribe(f"t{number}", lambda _delivery: None)
        one_connection = tasks()
        assert one_connection
        for _ in range(20):  # more than the sockets take
            assert client.bus.publish("t", bytes(1_000_000))
            await asyncio.sleep(0)
        ended.set()
        while client.bus.publish("t", b"x"):  # pending in every tick, also in that of the end
            await asyncio.sleep(0)
        await eventually(lambda: client.reconnects == 1, LONG_S)
        reconnected.set()
        await eventually(lambda: tasks() == one_connection, LONG_S)
        assert client.bus.connected
        assert not client.fatal
        await asyncio.wait_for(client.bus.close(), LONG_S)


async def test_a_server_that_reports_an_error_of_this_client_ends_the_process() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await reader.readline()
        writer.write(b"-ERR 'Unknown Protocol Operation'\r\n")

    async with pretender(talk) as address:
        client = Client(f"nats://{address}")
        await client.bus.connect()
        await eventually(lambda: bool(client.fatal), LONG_S)
        assert client.fatal == [
            "the connection to NATS was closed for good: unknown protocol operation"
        ]
        assert client.reasons("bus.closed") == ["unknown protocol operation"]
        assert not client.bus.connected
        await client.bus.close()
        assert client.reconnects == 0
