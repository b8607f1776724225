"""Who a client of NATS is: what its CONNECT says beside the name. Pure.

A credentials file is what `nsc` writes: a JWT that an account signed for the user, and the user's seed, with which the
server's nonce is signed (NATS documentation, "NKeys" and "JWTs"; an nkey is an Ed25519 key in base32 with a CRC-16).
"""

import base64
import binascii
import re
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_BLOCK = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s*(\S+)\s*-{3,}END \1-{3,}")
_SEED_BYTES = 36
"""Two of a prefix, 32 of the seed, two of the checksum."""
_SEED_PREFIX = 18 << 3
"""The upper five bits of a seed's first byte: the letter S."""


class Credentials(Struct, frozen=True):
    """A user's JWT and the seed of its key."""

    jwt: str
    seed: str

    def __repr__(self) -> str:
        return "<Credentials>"


def parse_credentials(text: str) -> Credentials:
    """Reads a credentials file. Raises ValueError where it is none."""
    blocks: dict[str, str] = dict(_BLOCK.findall(text))
    try:
        credentials = Credentials(blocks["NATS USER JWT"], blocks["USER NKEY SEED"])
    except KeyError as missing:
        raise ValueError(f"not a NATS credentials file: it has no {missing.args[0]}") from None
    _key(credentials.seed)
    return credentials


def sign(seed: str, nonce: str) -> str:
    """The signature with which a key's owner answers the server's nonce. Raises ValueError where the seed is none."""
    return base64.urlsafe_b64encode(_key(seed).sign(nonce.encode())).rstrip(b"=").decode()


def _key(seed: str) -> "Ed25519PrivateKey":
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except binascii.Error:
        raise ValueError("not an nkey seed: it is no base32") from None
    if len(raw) != _SEED_BYTES or raw[0] & 0xF8 != _SEED_PREFIX:
        raise ValueError("not an nkey seed")
    if binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise ValueError("not an nkey seed: its checksum is wrong")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(raw[2:-2])
