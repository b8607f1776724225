"""The connection, over real servers and over ones that misbehave: it comes back, or says why not."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from services.runtime import nats_connection, nats_link
from services.runtime.nats_connection import NatsClosed, NatsConnection
from services.runtime.nats_link import NatsRefused
from services.runtime.nats_protocol import Delivered, Info
from services.runtime.nats_servers import NatsServer
from tests.certificates import Authority
from tests.conftest import NatsServer as RealServer
from tests.conftest import eventually, free_port


class Client:
    """A connection, and all that it told."""

    def __init__(self, *urls: str, **options: Any) -> None:
        self.told: list[str] = []
        self.seen: list[tuple[NatsServer, Info]] = []

        async def identify(server: NatsServer, info: Info) -> dict[str, Any]:
            self.seen.append((server, info))
            return {"headers": True, "no_responders": True, **options}

        self.connection = NatsConnection(
            list(urls),
            identify,
            "_INBOX_test",
            on_disconnect=lambda reason: self.told.append(f"down: {reason}"),
            on_reconnect=lambda: self.told.append("up"),
            on_refusal=lambda reason: self.told.append(f"refused: {reason}"),
            on_fatal=lambda reason: self.told.append(f"fatal: {reason}"),
        )


@asynccontextmanager
async def connected(*urls: str, **options: Any) -> AsyncIterator[Client]:
    client = Client(*urls, **options)
    await asyncio.wait_for(client.connection.connect(), 10)
    yield client
    await asyncio.wait_for(client.connection.close(), 10)


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def pretender(talk: Talk) -> AsyncIterator[str]:
    """A server that says what a test lets it say; the URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, info: str = "{}") -> None:
    """The handshake of a server that takes anybody."""
    writer.write(f"INFO {info}\r\n".encode())
    assert (await reader.readline()).startswith(b"CONNECT ")
    assert await reader.readline() == b"PING\r\n"
    writer.write(b"PONG\r\n")


async def test_big_and_small_messages_come_whole_and_in_order(nats: RealServer) -> None:
    async with connected(nats.url) as one, connected(nats.url) as two:
        heard: list[Delivered] = []
        two.connection.subscribe("big", heard.append)
        await two.connection.flush(5)
        said = [bytes([n]) * (n * 150_000) for n in range(12)]
        for payload in said:
            one.connection.publish("big", payload, "answer.here")
        await eventually(lambda: len(heard) == len(said), 20)
        assert [message.payload for message in heard] == said
        assert {(message.subject, message.reply) for message in heard} == {(b"big", b"answer.here")}


async def test_what_the_server_had_sent_before_a_subscription_ends_is_received(nats: RealServer) -> None:
    async with connected(nats.url) as one, connected(nats.url) as two:
        heard: list[bytes] = []
        sid = two.connection.subscribe("ends", lambda message: heard.append(message.payload))
        await two.connection.flush(5)
        one.connection.publish("ends", b"before")
        await one.connection.flush(5)
        await two.connection.unsubscribe(sid, 5)
        assert heard == [b"before"]
        one.connection.publish("ends", b"after")
        await one.connection.flush(5)
        await two.connection.flush(5)
        assert heard == [b"before"]


async def test_a_group_shares_its_messages(nats: RealServer) -> None:
    async with connected(nats.url) as one, connected(nats.url) as two:
        heard: list[bytes] = []
        for client in (one, two):
            client.connection.subscribe("shared", lambda message: heard.append(message.payload), "group")
            await client.connection.flush(5)
        for n in range(10):
            one.connection.publish("shared", b"%d" % n)
        await one.connection.flush(5)
        await two.connection.flush(5)
        assert sorted(heard) == [b"%d" % n for n in range(10)]


async def test_subscriptions_outlive_the_server(own_nats: RealServer) -> None:
    async with connected(own_nats.url) as client:
        heard: list[bytes] = []
        client.connection.subscribe("kept", lambda message: heard.append(message.payload))
        ended = client.connection.subscribe("ended", lambda message: heard.append(message.payload))
        own_nats.kill()
        await eventually(lambda: not client.connection.connected)
        with pytest.raises(NatsClosed):
            await client.connection.flush(5)
        await client.connection.unsubscribe(ended, 5)
        client.connection.subscribe("new", lambda message: heard.append(message.payload))
        own_nats.start()
        await eventually(lambda: client.told[-1:] == ["up"])
        for subject in ("kept", "ended", "new"):
            client.connection.publish(subject, subject.encode())
        await client.connection.flush(5)
        assert heard == [b"kept", b"new"]
        assert [told.partition(":")[0] for told in client.told] == ["down", "up"]


async def test_a_request_may_be_answered_over_a_later_connection(own_nats: RealServer) -> None:
    async with connected(own_nats.url) as client:
        asked: list[Delivered] = []
        client.connection.subscribe("q", asked.append)
        answer = asyncio.create_task(client.connection.request("q", b"?", 30))
        await eventually(lambda: bool(asked))
        own_nats.kill()
        own_nats.start()
        await eventually(lambda: client.told[-1:] == ["up"])
        client.connection.publish(asked[0].reply.decode(), b"!")
        assert (await asyncio.wait_for(answer, 10)).payload == b"!"


async def test_closing_ends_what_waits(nats: RealServer) -> None:
    async with connected(nats.url) as client:
        client.connection.subscribe("mute", lambda _message: None)
        waiting = asyncio.create_task(client.connection.request("mute", b"", 60))
        await asyncio.sleep(0)
        await client.connection.close()
        with pytest.raises(NatsClosed):
            await waiting
        assert client.told == []


async def test_the_next_server_is_tried(nats: RealServer) -> None:
    async with connected(f"nats://127.0.0.1:{free_port()}", nats.url) as client:
        assert client.connection.connected


@contextmanager
def serving(binary: str, directory: Path, config: str) -> Iterator[str]:
    """A real server with this configuration; its address."""
    address = f"127.0.0.1:{free_port()}"
    file = directory / "nats.conf"
    file.write_text(f'listen: "{address}"\n{config}\n')
    server = subprocess.Popen([binary, "-c", str(file)], stderr=subprocess.DEVNULL)
    yield address
    server.kill()
    server.wait()


async def test_tls_where_the_server_or_the_url_asks_for_it(
    nats_binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority("ours")
    certificate, key = authority.write(tmp_path, "server")
    with serving(nats_binary, tmp_path, f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}') as address:
        with pytest.raises(ssl.SSLCertVerificationError):
            await Client(f"tls://{address}").connection.connect()
        monkeypatch.setenv("SSL_CERT_FILE", authority.write_self(tmp_path / "ca.pem"))
        for scheme in ("nats", "tls"):
            async with connected(f"{scheme}://{address}") as client:
                heard: list[bytes] = []
                client.connection.subscribe("secret", lambda message, to=heard: to.append(message.payload))
                client.connection.publish("secret", b"x" * 500_000)
                await client.connection.flush(5)
                assert heard == [b"x" * 500_000]


async def test_a_url_that_asks_for_tls_takes_nothing_less(nats: RealServer) -> None:
    client = Client(nats.url.replace("nats://", "tls://"))
    with pytest.raises(NatsRefused, match="no TLS"):
        await client.connection.connect()
    assert not client.seen, "nothing is told to a server that was not to be trusted"


async def test_a_user_whom_the_server_does_not_know_is_told_at_once(nats_binary: str, tmp_path: Path) -> None:
    users = 'authorization { users: [{ user: "me", password: "secret", permissions: { publish: "mine" } }] }'
    with serving(nats_binary, tmp_path, users) as address:
        async with connected(address, user="me", **{"pass": "secret"}) as client:
            client.connection.publish("mine", b"")
            client.connection.publish("theirs", b"")
            await client.connection.flush(5)
            assert client.told == ['refused: Permissions Violation for Publish to "theirs"']
            assert client.connection.connected
        with pytest.raises(NatsRefused, match="Authorization Violation"):
            await asyncio.wait_for(Client(address, user="me", **{"pass": "guess"}).connection.connect(), 10)


async def test_a_server_that_finds_fault_with_us_is_not_asked_again() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await let_in(reader, writer)
        await reader.readline()
        writer.write(b"-ERR 'Unknown Protocol Operation'\r\n")
        await reader.read()

    async with pretender(talk) as url:
        client = Client(url)
        await client.connection.connect()
        await eventually(lambda: bool(client.told))
        assert client.told == ["fatal: Unknown Protocol Operation"]
        assert not client.connection.connected
        await client.connection.close()


async def test_nonsense_costs_the_connection_and_not_the_client() -> None:
    visits: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(1)
        await let_in(reader, writer)
        assert (await reader.readline()).startswith(b"SUB ")
        if len(visits) == 1:
            writer.write(b"MSG a b c d e f\r\n")
        elif len(visits) == 2:
            writer.write(b"-ERR 'Stale Connection'\r\n")
        while line := await reader.readline():
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")

    async with pretender(talk) as url:
        client = Client(url)
        await client.connection.connect()
        await eventually(lambda: len(visits) == 3 and client.told[-1:] == ["up"])
        assert [told[:16] for told in client.told if told != "up"] == ["down: not unders", "down: Stale Conn"]
        await client.connection.close()


async def test_a_server_that_falls_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_link, "PING_INTERVAL_S", 0.01)
    visits: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(1)
        await let_in(reader, writer)
        await reader.read()

    async with pretender(talk) as url:
        client = Client(url)
        await client.connection.connect()
        await eventually(lambda: len(visits) > 1)
        assert client.told[0] == "down: the server does not answer"
        await client.connection.close()


async def test_the_servers_pings_are_answered_and_its_news_are_heard() -> None:
    answered = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await let_in(reader, writer, '{"max_payload":1000}')
        writer.write(b'INFO {"max_payload":2000,"ldm":true}\r\nPING\r\n')
        while line := await reader.readline():
            if line == b"PONG\r\n":
                answered.set()

    async with pretender(talk) as url, connected(url) as client:
        await asyncio.wait_for(answered.wait(), 10)
        assert client.connection.max_payload == 2000


async def test_what_is_said_in_the_clear_before_tls_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_connection, "ATTEMPT_S", 0.2)
    visits: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(1)
        writer.write(b'INFO {"tls_required":true}\r\nPONG\r\n')
        await reader.read()

    async with pretender(talk) as url:
        client = Client(url)
        connecting = asyncio.create_task(client.connection.connect())
        await eventually(lambda: len(visits) > 1)
        assert not client.seen, "nothing was told in the clear"
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
