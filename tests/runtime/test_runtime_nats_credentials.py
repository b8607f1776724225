"""Credentials: the seed of a key, and the file that `nsc` writes."""

import asyncio
import base64
import binascii
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from structlog.typing import FilteringBoundLogger

from schemas.errors import Unavailable
from services.runtime.bus import Bus
from services.runtime.config import BusConfig
from services.runtime.nats_credentials import Credentials, parse_credentials, sign
from tests.conftest import free_port

RAW = bytes(range(32))


def seed_of(raw: bytes, prefix: bytes = bytes([(18 << 3) | (20 << 3 >> 5), (20 << 3 & 31) << 3])) -> str:
    """A user's seed (the prefix of a seed, then that of a user: NATS's nkeys)."""
    body = prefix + raw
    checksum = binascii.crc_hqx(body, 0).to_bytes(2, "little")
    return base64.b32encode(body + checksum).rstrip(b"=").decode()


SEED = seed_of(RAW)
FILE = f"""-----BEGIN NATS USER JWT-----
eyJ0.eyJq.c2ln
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.

-----BEGIN USER NKEY SEED-----
{SEED}
------END USER NKEY SEED------

*************************************************************
"""


def test_the_seed_signs() -> None:
    assert SEED.startswith("SU")
    signature = sign(SEED, "nonce")
    assert "=" not in signature
    raw = base64.urlsafe_b64decode(signature + "==")
    Ed25519PrivateKey.from_private_bytes(RAW).public_key().verify(raw, b"nonce")


def test_a_file_holds_a_token_and_a_seed() -> None:
    found = parse_credentials(FILE)
    assert found == Credentials("eyJ0.eyJq.c2ln", SEED)
    assert SEED not in repr(found)
    assert parse_credentials(FILE.replace("\n", "\r\n")) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "password",
        FILE.replace("USER NKEY SEED", "SOMETHING"),
        FILE.replace(SEED, SEED[:-1] + ("A" if SEED[-1] != "A" else "B")),
        FILE.replace(SEED, SEED[:-8]),
        FILE.replace(SEED, "1" + SEED[1:]),
        FILE.replace(SEED, seed_of(RAW, b"\x00\x00")),
    ],
)
def test_what_is_no_such_file_is_said_without_its_secrets(text: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_credentials(text)
    assert SEED[4:] not in str(raised.value)


class Key:
    """An nkey: of an operator, an account or a user."""

    def __init__(self, kind: int, number: int) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
        body = bytes([kind << 3]) + self._key.public_key().public_bytes_raw()
        self.name = base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode()
        self.seed = seed_of(bytes([number]) * 32, bytes([(18 << 3) | (kind >> 2), (kind & 3) << 6]))

    def token(self, subject: "Key", claims: dict[str, object]) -> str:
        """A JWT in which this key says something of another."""
        head, body = (
            base64.urlsafe_b64encode(msgspec.json.encode(part)).rstrip(b"=")
            for part in (
                {"typ": "JWT", "alg": "ed25519-nkey"},
                {
                    "jti": "x",
                    "iat": 1,
                    "iss": self.name,
                    "sub": subject.name,
                    "name": "n",
                    "nats": {**claims, "version": 2},
                },
            )
        )
        signature = base64.urlsafe_b64encode(self._key.sign(head + b"." + body)).rstrip(b"=")
        return (head + b"." + body + b"." + signature).decode()


async def test_a_server_lets_in_whoever_an_account_signed_for(
    nats_binary: str, tmp_path: Path, quiet_log: FilteringBoundLogger
) -> None:
    operator, account, user, stranger = Key(14, 1), Key(0, 2), Key(20, 3), Key(20, 4)
    limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    signed = account.token(user, {"type": "user", "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1})
    port = free_port()
    (tmp_path / "nats.conf").write_text(
        f'listen: "127.0.0.1:{port}"\noperator: "{operator.token(operator, {"type": "operator"})}"\nresolver: MEMORY\n'
        f"resolver_preload: {{ {account.name}: "
        f'"{operator.token(account, {"type": "account", "limits": {**limits, "wildcards": True}})}" }}\n'
    )
    creds = tmp_path / "user.creds"
    server = await asyncio.create_subprocess_exec(
        nats_binary, "-c", str(tmp_path / "nats.conf"), stderr=asyncio.subprocess.DEVNULL
    )

    def bus() -> Bus:
        config = BusConfig(nats_url=f"nats://127.0.0.1:{port}", nats_creds_file=str(creds))
        return Bus(
            config, name="t", inbox_prefix="_INBOX", log=quiet_log, on_fatal=pytest.fail, on_reconnect=lambda: None
        )

    try:
        creds.write_text(FILE.replace("eyJ0.eyJq.c2ln", signed).replace(SEED, user.seed))
        known = bus()
        await known.connect()
        heard: list[bytes] = []
        await known.subscribe("a", lambda message: heard.append(message.data))
        assert known.publish("a", b"x")
        await known.flush()
        assert heard == [b"x"]
        await known.close()
        creds.write_text(FILE.replace("eyJ0.eyJq.c2ln", signed).replace(SEED, stranger.seed))
        with pytest.raises(Unavailable, match="Authorization Violation"):
            await bus().connect()
        creds.unlink()
        with pytest.raises(Unavailable, match=r"user\.creds"):
            await bus().connect()
    finally:
        server.kill()
        await server.wait()
