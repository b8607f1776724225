"""The connection of the bus: servers to choose from, TLS, users, reconnects, and servers that misbehave."""

import asyncio
import base64
import binascii
import contextlib
import gc
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from schemas.errors import TimedOut, Unavailable
from services.runtime import bus as bus_module
from services.runtime.bus import Bus
from services.runtime.config import BusConfig
from tests.certificates import Authority
from tests.conftest import NatsServer, eventually, free_port

LONG_S = 60


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """nats-py leaves failed tasks behind when a connection breaks: they are reported here, not during another test."""
    yield
    gc.collect()


class Client:
    """A bus, and everything that it reported."""

    def __init__(self, *urls: str, **config: object) -> None:
        self.log = structlog.testing.LogCapture()
        self.fatal: list[str] = []
        self.reconnects = 0
        self.bus = Bus(
            BusConfig(nats_url=",".join(urls), **config),  # type: ignore[arg-type]
            name="test",
            inbox_prefix="_INBOX_test",
            log=structlog.wrap_logger(structlog.PrintLogger(), processors=[self.log]),
            on_fatal=self.fatal.append,
            on_reconnect=self._reconnected,
        )

    def _reconnected(self) -> None:
        self.reconnects += 1

    def reasons(self, event: str) -> list[str]:
        return [entry["reason"] for entry in self.log.entries if entry["event"] == event]

    async def works(self, data: bytes = b"x") -> None:
        """A message goes to the server and back."""
        received: list[bytes] = []
        subscription = await self.bus.subscribe("works", lambda message: received.append(message.data))
        assert self.bus.publish("works", data)
        await eventually(lambda: received == [data], LONG_S)
        await subscription.stop()


@asynccontextmanager
async def connected(*urls: str, **config: object) -> AsyncIterator[Client]:
    client = Client(*urls, **config)
    await client.bus.connect()
    yield client
    await asyncio.wait_for(client.bus.close(), LONG_S)


async def refused(*urls: str, **config: object) -> str:
    """The error of a client that is refused at once, long before its own deadline."""
    with pytest.raises(Unavailable) as raised:
        await asyncio.wait_for(Client(*urls, connect_timeout_s=10 * LONG_S, **config).bus.connect(), LONG_S)
    return str(raised.value)


@contextmanager
def serving(binary: str, directory: Path, config: str, port: int = 0, end: int = signal.SIGKILL) -> Iterator[str]:
    """A real server with this configuration; its address."""
    address = f"127.0.0.1:{port or free_port()}"
    file = directory / f"nats-{address.rpartition(':')[2]}.conf"
    file.write_text(f'listen: "{address}"\n{config}\n')
    server = subprocess.Popen([binary, "-c", str(file)], stderr=subprocess.DEVNULL)
    yield address
    server.send_signal(end)
    server.wait()


def info(address: str) -> dict[str, Any]:
    """What a server sends first; {} as long as it is not up."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), LONG_S) as connection:
        return msgspec.json.decode(connection.makefile("rb").readline().removeprefix(b"INFO "), type=dict[str, Any])
    return {}


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def pretender(talk: Talk) -> AsyncIterator[str]:
    """A server that sends what a test makes it send; its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The handshake of a server that takes anybody."""
    writer.write(b"INFO {}\r\n")
    assert (await reader.readline()).startswith(b"CONNECT ")
    assert await reader.readline() == b"PING\r\n"
    writer.write(b"PONG\r\n")


async def answer_pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        if line == b"PING\r\n":
            writer.write(b"PONG\r\n")


# The first connection, and several servers.


async def test_a_missing_server_is_waited_for_and_then_named() -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match=url):
        await Client(url, connect_timeout_s=0.3).bus.connect()


async def test_a_deadline_holds_when_it_comes_together_with_a_refusal() -> None:
    url = f"nats://127.0.0.1:{free_port()}"  # many at once and soon: some meet the same tick as the refusal
    clients = [Client(url, connect_timeout_s=0.0005 + 0.0002 * number) for number in range(50)]
    async with asyncio.timeout(LONG_S):
        ends = await asyncio.gather(*(client.bus.connect() for client in clients), return_exceptions=True)
    assert {type(end) for end in ends} == {Unavailable}


async def test_a_server_may_start_after_its_clients(nats_binary: str, tmp_path: Path) -> None:
    server = NatsServer(nats_binary, str(tmp_path))
    client = Client(server.url)
    connecting = asyncio.create_task(client.bus.connect())
    await asyncio.sleep(0.05)
    server.start()
    await asyncio.wait_for(connecting, LONG_S)
    await client.works()
    await client.bus.close()
    server.kill()


@pytest.mark.parametrize("url", ["ws://h", "http://h", "nats://", "nats://h:x", "nats://h:99999", "nats://h:0"])
async def test_what_is_not_a_url_of_a_server(url: str) -> None:
    assert "cannot connect" in await refused(url)


async def test_the_next_server_is_tried(own_nats: NatsServer, nats: NatsServer) -> None:
    async with connected(f"nats://127.0.0.1:{free_port()}", nats.url, own_nats.url.removeprefix("nats://")) as client:
        received: list[bytes] = []
        await client.bus.subscribe("t", lambda message: received.append(message.data))
        own_nats.kill()  # if the client is connected to that one, the other takes over

        def arrives() -> bool:
            client.bus.publish("t", b"x")
            return bool(received)

        await eventually(arrives, LONG_S)


async def test_a_server_that_closes_in_the_handshake_is_passed_over(nats: NatsServer) -> None:
    async def talk(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        pass

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO {}\r\n")
        await reader.readline()

    for behaviour in (talk, leave):
        async with pretender(behaviour) as address, connected(f"nats://{address}", nats.url) as client:
            await client.works()


async def test_the_other_servers_of_a_cluster_are_found(nats_binary: str, tmp_path: Path) -> None:
    routes = [free_port(), free_port()]
    configs = [
        f'server_name: s{own}\ncluster {{ name: c, listen: "127.0.0.1:{own}", routes: ["nats://127.0.0.1:{other}"] }}\n'
        'authorization { user: "me", password: "secret" }'
        for own, other in (routes, reversed(routes))
    ]
    with serving(nats_binary, tmp_path, configs[1]):
        with serving(nats_binary, tmp_path, configs[0]) as first:
            await eventually(lambda: len(info(first).get("connect_urls", [])) == 2, LONG_S)
            client = Client(f"nats://me:secret@{first}")
            await client.bus.connect()
        await eventually(lambda: client.reconnects == 1, LONG_S)
        await client.works()
        await client.bus.close()


# TLS.


async def test_tls_where_the_server_or_the_url_requires_it(
    nats_binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority("ours")
    certificate, key = authority.write(tmp_path, "server")
    with serving(nats_binary, tmp_path, f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}') as address:
        assert "certificate" in await refused(f"tls://{address}")
        monkeypatch.setenv("SSL_CERT_FILE", authority.write_self(tmp_path / "ca.pem"))
        for scheme in ("nats", "tls"):
            async with connected(f"{scheme}://{address}") as client:
                await client.works(b"x" * 500_000)


SECRETS = [{}, {"nats_user": "me", "nats_password_file": "password"}, {"nats_creds_file": "user.creds"}]


@pytest.mark.parametrize("config", SECRETS, ids=["url", "password file", "credentials"])
@pytest.mark.parametrize("tls", ["", "tls_available"])
async def test_a_url_with_tls_sends_nothing_without_it(
    config: dict[str, str], tls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("password").write_text("secret")
    Path("user.creds").write_text(CREDENTIALS)
    received: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            msgspec.json.encode({"auth_required": True, "nonce": "n", "max_payload": 100, tls: True}).join(
                [b"INFO ", b"\r\n"]
            )
        )
        received.append(await reader.read())

    async with pretender(talk) as address:
        assert "the server has no TLS" in await refused(f"tls://me:secret@{address}", **config)
        await eventually(lambda: bool(received), LONG_S)
    assert received == [b""]


async def test_what_is_sent_in_the_clear_before_tls_is_ignored() -> None:
    received: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"tls_required":true}\r\nPONG\r\n')
        received.append(await reader.read(1000))

    async with pretender(talk) as address:
        with pytest.raises(Unavailable):
            await Client(f"nats://me:secret@{address}", connect_timeout_s=1.0).bus.connect()
    assert received
    assert not any(b"secret" in data for data in received)


# Users.


async def test_users_of_a_url_and_of_a_password_file(nats_binary: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("p@ss\n")
    config = 'authorization { user: "me", password: "p@ss" }'
    with serving(nats_binary, tmp_path, config) as address:
        for url, options in (
            (f"nats://me:p%40ss@{address}", {}),
            (f"nats://:p%40ss@{address}", {"nats_user": "me"}),
            (f"nats://{address}", {"nats_user": "me", "nats_password_file": str(password)}),
            (f"nats://me@{address}", {"nats_password_file": str(password)}),
            (f"nats://you:guess@{address}", {"nats_user": "me", "nats_password_file": str(password)}),
        ):
            async with connected(url, **options) as client:
                await client.works()
        for url, options in (
            (f"nats://{address}", {}),
            (f"nats://me:guess@{address}", {}),
            (f"nats://me:p%40ss@{address}", {"nats_user": "you"}),
        ):
            assert "Authorization Violation" in await refused(url, **options)
        missing = await refused(f"nats://{address}", nats_user="me", nats_password_file=str(tmp_path / "none"))
        assert f"{tmp_path}/none: [Errno 2] No such file" in missing


async def test_a_user_alone_is_a_token(nats_binary: str, tmp_path: Path) -> None:
    with serving(nats_binary, tmp_path, 'authorization { token: "s/cret" }') as address:
        async with connected(f"nats://s%2Fcret@{address}") as client:
            await client.works()
        assert "Authorization Violation" in await refused(f"nats://guess@{address}")


async def test_a_password_may_change_while_the_process_runs(nats_binary: str, tmp_path: Path) -> None:
    password, port = tmp_path / "password", free_port()
    config = 'authorization {{ user: "me", password: "{}" }}'
    password.write_text("old")
    client = Client(f"nats://127.0.0.1:{port}", nats_user="me", nats_password_file=str(password))
    with serving(nats_binary, tmp_path, config.format("old"), port):
        await client.bus.connect()
    with serving(nats_binary, tmp_path, config.format("new"), port):
        await eventually(lambda: bool(client.reasons("bus.refused")), LONG_S)
        password.write_text("new")
        await eventually(lambda: client.reconnects == 1, LONG_S)
        await client.works()
        await client.bus.close()
    assert client.reasons("bus.refused") == ["Authorization Violation"], "once, and not with every attempt"
    assert len(client.reasons("bus.disconnected")) == 1
    assert not client.fatal


async def test_what_a_user_may_not_do_is_logged(nats_binary: str, tmp_path: Path) -> None:
    users = 'authorization { users: [{ user: "me", password: "x", permissions: { publish: ["mine", "works"] } }] }'
    port = free_port()
    client = Client(f"nats://me:x@127.0.0.1:{port}")
    with serving(nats_binary, tmp_path, users, port):
        await client.bus.connect()
        assert client.bus.publish("mine", b"")
        assert client.bus.publish("theirs", b"")
        await client.bus.flush()
        assert client.reasons("bus.refused") == ['permissions violation for publish to "theirs"']
        await client.works()
    with serving(nats_binary, tmp_path, users, port):
        await eventually(lambda: client.reconnects == 1, LONG_S)
        await client.works()
        await client.bus.close()
    assert not client.fatal, "a permission is no reason to end"


# Reconnects.


async def test_subscriptions_survive_the_server(own_nats: NatsServer) -> None:
    async with connected(own_nats.url) as client:
        received: list[bytes] = []
        await client.bus.subscribe("kept", lambda message: received.append(message.data))
        ended = await client.bus.subscribe("ended", lambda message: received.append(message.data))
        own_nats.kill()
        await eventually(lambda: not client.bus.connected, LONG_S)
        await client.bus.flush()
        await ended.stop()
        await client.bus.subscribe("new", lambda message: received.append(message.data))
        own_nats.start()
        await eventually(lambda: client.reconnects == 1, LONG_S)
        for subject in ("kept", "ended", "new"):
            assert client.bus.publish(subject, subject.encode())
        await client.works()
        assert received == [b"kept", b"new"]
        assert len(client.reasons("bus.disconnected")) == 1


async def test_a_request_may_be_answered_over_a_later_connection(own_nats: NatsServer) -> None:
    async with connected(own_nats.url) as client:
        replies: list[str] = []
        await client.bus.subscribe("q", lambda message: replies.append(message.reply_to))
        answer = asyncio.create_task(client.bus.request("q", b"?", LONG_S))
        await eventually(lambda: bool(replies), LONG_S)
        own_nats.kill()
        own_nats.start()
        await eventually(lambda: client.reconnects == 1, LONG_S)
        assert client.bus.publish(replies[0], b"!")
        assert await asyncio.wait_for(answer, LONG_S) == b"!"


async def test_what_was_published_before_a_disconnect_is_not_sent_after_it(own_nats: NatsServer) -> None:
    async with connected(own_nats.url) as client:
        own_nats.pause()
        sent = 0
        while sent < 400:  # 40 MB: far more than the sockets take
            assert client.bus.publish("old", bytes(100_000))
            sent += 1
            if sent % 20 == 0:
                await asyncio.sleep(0)
        own_nats.kill()
        await eventually(lambda: not client.bus.connected, LONG_S)
        assert not client.bus.publish("old", b"")
        own_nats.start()
        async with connected(own_nats.url) as other:
            received: list[str] = []
            await other.bus.subscribe(">", lambda message: received.append(message.subject))
            await other.bus.flush()
            await eventually(lambda: client.reconnects == 1, LONG_S)
            assert client.bus.publish("new", b"")
            await eventually(lambda: "new" in received, LONG_S)
            assert "old" not in received


async def test_a_pause_of_the_server_delays_messages_and_nothing_else(own_nats: NatsServer) -> None:
    async with connected(own_nats.url) as client:
        received: list[bytes] = []
        await client.bus.subscribe("slow", lambda message: received.append(message.data))
        await client.bus.flush()
        own_nats.pause()
        sent = [b"%d" % n for n in range(100)]
        for data in sent:
            assert client.bus.publish("slow", data)
        await client.bus.flush(0.05)
        with pytest.raises(TimedOut):
            await client.bus.request("slow", b"last", 0.05)
        own_nats.resume()
        await eventually(lambda: received == [*sent, b"last"], LONG_S)
        await client.works()
        assert client.reconnects == 0


async def test_a_server_that_does_not_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_module, "PING_INTERVAL_S", 0.05)
    visits: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(1)
        await accept(reader, writer)
        await (answer_pings(reader, writer) if len(visits) > 1 else asyncio.Event().wait())

    async with pretender(talk) as address:
        client = Client(f"nats://{address}")
        await client.bus.connect()
        for _ in range(10):  # nats-py waits until all of it is sent, before it reports the end
            assert client.bus.publish("t", bytes(1_000_000))
        await eventually(lambda: client.reconnects == 1, LONG_S)
        assert client.reasons("bus.disconnected") == ["stale connection"]
        await asyncio.wait_for(client.bus.close(), LONG_S)


async def test_nonsense_of_a_server_costs_the_connection() -> None:
    visits: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(1)
        await accept(reader, writer)
        assert (await reader.readline()).startswith(b"SUB ")
        if len(visits) == 1:
            writer.write(b"WHAT IS THIS\r\n")
        elif len(visits) == 2:
            writer.write(b"-ERR 'Stale Connection'\r\n")
        await answer_pings(reader, writer)

    async with pretender(talk) as address:
        client = Client(f"nats://{address}")
        await client.bus.connect()
        await eventually(lambda: client.reconnects == 2, LONG_S)
        assert client.bus.connected
        assert not client.fatal
        await client.bus.close()


@pytest.mark.parametrize("stays", [True, False])
async def test_a_server_that_reports_an_error_of_this_client_ends_the_process(stays: bool) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await reader.readline()
        writer.write(b"-ERR 'Unknown Protocol Operation'\r\n")
        if stays:
            await reader.read()

    async with pretender(talk) as address:
        client = Client(f"nats://{address}")
        await client.bus.connect()
        await eventually(lambda: bool(client.fatal), LONG_S)
        assert client.fatal == ["the connection to NATS was closed for good: unknown protocol operation"]
        assert client.reasons("bus.closed") == ["unknown protocol operation"]
        assert not client.bus.connected
        await client.bus.close()
        assert client.reconnects == 0


async def test_the_end_of_a_server_is_no_error_of_its_clients(nats_binary: str, tmp_path: Path) -> None:
    port = free_port()
    client = Client(f"nats://127.0.0.1:{port}")
    for visit in range(2):
        with serving(nats_binary, tmp_path, "", port, signal.SIGTERM):
            if not visit:
                await client.bus.connect()
            await eventually(lambda: client.bus.connected, LONG_S)
        await eventually(lambda visit=visit: len(client.reasons("bus.disconnected")) == visit + 1, LONG_S)  # type: ignore[misc]
    assert not client.fatal
    await client.bus.close()


# Credentials.


def seed_of(raw: bytes, kind: int) -> str:
    """An nkey seed: two bytes of prefix, 32 bytes, a checksum."""
    body = bytes([(18 << 3) | (kind >> 2), (kind & 3) << 6]) + raw
    return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).rstrip(b"=").decode()


SEED = seed_of(bytes(range(32)), 20)
CREDENTIALS = f"""-----BEGIN NATS USER JWT-----
eyJ0.eyJq.c2ln
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.

-----BEGIN USER NKEY SEED-----
{SEED}
------END USER NKEY SEED------

*************************************************************
"""


class Key:
    """An nkey: of an operator, an account or a user."""

    def __init__(self, kind: int, number: int) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
        body = bytes([kind << 3]) + self._key.public_key().public_bytes_raw()
        self.name = base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode()
        self.seed = seed_of(bytes([number]) * 32, kind)

    def token(self, subject: "Key", claims: dict[str, object]) -> str:
        """A JWT in which this key makes claims about another."""
        about = {"jti": "x", "iat": 1, "iss": self.name, "sub": subject.name, "name": "n"}
        head, body = (
            base64.urlsafe_b64encode(msgspec.json.encode(part)).rstrip(b"=")
            for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, {**about, "nats": {**claims, "version": 2}})
        )
        signature = base64.urlsafe_b64encode(self._key.sign(head + b"." + body)).rstrip(b"=")
        return (head + b"." + body + b"." + signature).decode()


async def test_a_server_accepts_the_users_for_whom_an_account_signed(nats_binary: str, tmp_path: Path) -> None:
    operator, account, user, stranger = Key(14, 1), Key(0, 2), Key(20, 3), Key(20, 4)
    limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    signed = account.token(user, {"type": "user", "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1})
    config = (
        f'operator: "{operator.token(operator, {"type": "operator"})}"\nresolver: MEMORY\n'
        f"resolver_preload: {{ {account.name}: "
        f'"{operator.token(account, {"type": "account", "limits": {**limits, "wildcards": True}})}" }}'
    )
    creds = tmp_path / "user.creds"

    def write(key: Key, end: str = "\n") -> None:
        creds.write_bytes(
            CREDENTIALS.replace("eyJ0.eyJq.c2ln", signed).replace(SEED, key.seed).replace("\n", end).encode()
        )

    with serving(nats_binary, tmp_path, config) as address:
        for end in ("\n", "\r\n"):
            write(user, end)
            async with connected(f"nats://{address}", nats_creds_file=str(creds)) as client:
                await client.works()
        write(stranger)
        assert "Authorization Violation" in await refused(f"nats://{address}", nats_creds_file=str(creds))
        creds.unlink()
        assert "user.creds: [Errno 2] No such file" in await refused(f"nats://{address}", nats_creds_file=str(creds))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "password",
        CREDENTIALS.replace("USER NKEY SEED", "SOMETHING"),
        CREDENTIALS.replace("NATS USER JWT", "SOMETHING"),
        CREDENTIALS.replace(SEED, ""),
        CREDENTIALS.replace(SEED, SEED[:-10]),
        CREDENTIALS.replace(SEED, "1" + SEED[1:]),
        CREDENTIALS.replace(SEED, "A" + SEED[1:]),
    ],
)
async def test_what_is_not_a_credentials_file_is_refused_without_its_secrets(text: str, tmp_path: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"auth_required":true,"nonce":"n"}\r\n')
        assert not await reader.read()

    creds = tmp_path / "user.creds"
    creds.write_text(text)
    async with pretender(talk) as address:
        error = await refused(f"nats://{address}", nats_creds_file=str(creds))
    assert "cannot connect" in error
    assert SEED[4:20] not in error
