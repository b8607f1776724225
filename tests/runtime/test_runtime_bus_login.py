"""How the bus proves who it is and to whom it speaks: TLS, users, passwords, credentials."""

import asyncio
import base64
import binascii
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from schemas.errors import Unavailable
from services.runtime.config.service import BusConfig
from services.runtime.nats.login import read_tls
from tests.kit.certificates import Authority
from tests.kit.nats import free_port
from tests.kit.waiting import eventually
from tests.runtime.bus_clients import Client, answer_pings, connected, pretender, refused, serving

pytestmark = pytest.mark.usefixtures("collected")


async def test_tls_is_used_where_the_server_or_the_url_requires_it(
    nats_binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority("ours")
    certificate, key = authority.write(tmp_path, "server")
    with serving(
        nats_binary, tmp_path, f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}'
    ) as address:
        assert "certificate" in await refused(f"tls://{address}")
        monkeypatch.setenv("SSL_CERT_FILE", authority.write_self(tmp_path / "ca.pem"))
        for scheme in ("nats", "tls"):
            async with connected(f"{scheme}://{address}") as client:
                await client.works(b"x" * 500_000)


@pytest.mark.parametrize("tls", ["", "tls_available"])
async def test_a_url_with_tls_sends_nothing_without_it(tls: str, tmp_path: Path) -> None:
    creds = tmp_path / "creds"
    creds.write_text(CREDENTIALS)
    received: list[bytes] = []
    info = {"auth_required": True, "nonce": "n", "max_payload": 100, tls: True}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + msgspec.json.encode(info) + b"\r\n")
        received.append(await reader.read())

    async with pretender(talk) as address:
        error = await refused(f"tls://me:secret@{address}", nats_creds_file=str(creds))
        assert "the server has no TLS" in error
        await eventually(lambda: bool(received))
    assert received == [b""]


async def test_plain_data_before_tls_is_ignored() -> None:
    received: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"tls_required":true}\r\nPONG\r\n')
        received.append(await reader.read(1000))

    async with pretender(talk) as address:
        with pytest.raises(Unavailable):
            await Client(f"nats://me:secret@{address}", connect_timeout_s=1.0).bus.connect()
    assert received
    assert b"secret" not in b"".join(received)


async def test_users_of_a_url_and_of_a_password_file_are_accepted(
    nats_binary: str, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("p@ss\n")
    user, file = {"nats_user": "me"}, {"nats_password_file": str(password)}
    config = 'authorization { user: "me", password: "p@ss" }'
    with serving(nats_binary, tmp_path, config) as address:
        for url, options in (
            (f"nats://me:p%40ss@{address}", {}),
            (f"nats://:p%40ss@{address}", user),
            (f"nats://me@{address}", file),
            (f"nats://you:guess@{address}", user | file),
        ):
            async with connected(url, **options) as client:
                await client.works()
        for url, options in (
            (f"nats://me:guess@{address}", {}),
            (f"nats://me:p%40ss@{address}", {"nats_user": "you"}),
        ):
            assert "Authorization Violation" in await refused(url, **options)


async def test_a_password_may_change_while_the_process_runs(
    nats_binary: str, tmp_path: Path
) -> None:
    password, port = tmp_path / "password", free_port()
    config = 'authorization {{ user: "me", password: "{}" }}'
    password.write_text("old")
    client = Client(f"nats://127.0.0.1:{port}", nats_user="me", nats_password_file=str(password))
    with serving(nats_binary, tmp_path, config.format("old"), port):
        await client.bus.connect()
    with serving(nats_binary, tmp_path, config.format("new"), port):
        await eventually(lambda: bool(client.reasons("bus.refused")))
        password.write_text("new")
        await eventually(lambda: client.reconnects == 1)
        await client.works()
        await client.bus.close()
    assert client.reasons("bus.refused") == ["Authorization Violation"], "not at every attempt"
    assert not client.fatal


PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def seed() -> str:
    """The nkey seed of a user: two bytes of prefix, the private key, a checksum."""
    body = bytes([18 << 3 | 20 >> 2, 0]) + PRIVATE.private_bytes_raw()
    checksum = binascii.crc_hqx(body, 0).to_bytes(2, "little")
    return base64.b32encode(body + checksum).rstrip(b"=").decode()


SEED = seed()
CREDENTIALS = f"""-----BEGIN NATS USER JWT-----
eyJ0.eyJq.c2ln
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{SEED}
------END USER NKEY SEED------
"""


async def test_a_user_with_credentials_signs_what_the_server_sent(tmp_path: Path) -> None:
    creds = tmp_path / "user.creds"
    creds.write_bytes(CREDENTIALS.replace("\n", "\r\n").encode())

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"auth_required":true,"nonce":"a nonce"}\r\n')
        sent = msgspec.json.decode((await reader.readline()).removeprefix(b"CONNECT "))
        assert sent["jwt"] == "eyJ0.eyJq.c2ln"
        signature = base64.urlsafe_b64decode(sent["sig"] + "==")
        PRIVATE.public_key().verify(signature, b"a nonce")
        assert await reader.readline() == b"PING\r\n"
        writer.write(b"PONG\r\n")
        await answer_pings(reader, writer)

    async with (
        pretender(talk) as address,
        connected(f"nats://me:secret@{address}", nats_creds_file=str(creds)),
    ):
        pass
    creds.unlink()
    error = await refused(f"nats://{address}", nats_creds_file=str(creds))
    assert "user.creds: [Errno 2] No such file" in error


async def test_a_malformed_credentials_file_is_refused_without_its_secrets(tmp_path: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"auth_required":true,"nonce":"n"}\r\n')
        assert not await reader.read()

    creds = tmp_path / "user.creds"
    creds.write_text(CREDENTIALS.replace(SEED, SEED[:-10]))
    async with pretender(talk) as address:
        error = await refused(f"nats://{address}", nats_creds_file=str(creds))
    assert "cannot connect" in error
    assert SEED[4:20] not in error


async def test_broken_and_foreign_files_are_named(tmp_path: Path) -> None:
    authority = Authority("one")
    cert, key = authority.write(tmp_path, "own")
    _, other = authority.write(tmp_path, "other")
    broken = tmp_path / "broken"
    broken.write_bytes(b"nothing")
    for files, problem in (
        ((str(broken), key), f"{broken} has no certificate in PEM form"),
        ((cert, None), f"{cert} has no private key in PEM form"),
        ((cert, other), f"the key in {other} is not that of the certificate in {cert}"),
    ):
        with pytest.raises(ValueError, match=problem):
            await read_tls(BusConfig(nats_cert_file=files[0], nats_key_file=files[1]))
