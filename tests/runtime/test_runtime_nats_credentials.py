"""Credentials: the seed of a key, and the file that `nsc` writes."""

import base64
import binascii

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from services.runtime.nats_credentials import Credentials, parse_credentials, sign

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
