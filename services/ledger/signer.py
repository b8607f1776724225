"""Signs ledger entries with the deployment's seal key.

An entry becomes part of a prompt: without the signature any client of the bus could put words into
a model's mouth.
"""

import hashlib
import hmac

import msgspec
from msgspec.structs import replace

from schemas.ledger import LedgerEntry
from services.runtime.storage.seal import secret

MAX_ENTRY_BYTES = 768 * 1024
"""Limit of an encoded entry: some 140,000 tokens. It must fit the bus of a NATS server with default
limits (1 MB)."""
MAC_BYTES = 16

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(LedgerEntry).decode


class EntrySigner:
    """Signs entries and verifies them. Thread-safe."""

    def __init__(self, key: bytes) -> None:
        """`key`: the deployment's secret, from which the signing key is derived."""
        self._key = hashlib.blake2b(key, digest_size=32, person=b"turnwire-ledger").digest()

    @classmethod
    def load(cls, key_file: str | None, model: str) -> "EntrySigner":
        """The signer with the key that also seals reasoning, as in `Sealer.load`. Raises OSError
        where the file cannot be read."""
        return cls(secret(key_file, model))

    def sign(self, entry: LedgerEntry) -> LedgerEntry:
        """The entry with its `mac`."""
        return replace(entry, mac=self._mac(entry))

    def read(self, data: bytes) -> LedgerEntry | None:
        """The entry in a message; None for anything that was not signed with this key."""
        try:
            entry = _decode(data)
        except (msgspec.DecodeError, RecursionError):
            return None
        return entry if hmac.compare_digest(entry.mac, self._mac(entry)) else None

    def _mac(self, entry: LedgerEntry) -> bytes:
        bare = _encode(replace(entry, mac=b""))
        return hashlib.blake2b(bare, digest_size=MAC_BYTES, key=self._key).digest()
