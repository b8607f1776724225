"""Seals reasoning: makes an opaque, authenticated copy of a thought that clients carry from turn to
turn.

Messages calls it `signature`, Responses `encrypted_content`; both hold the same blob. A client may
drop or hide the text of a thought and still send back the blob, which restores the text and shows
whether it was changed. A blob that this deployment did not make, or made for another tenant, opens
to None and is treated as absent, never as an error.

Form: base64url of `version ‖ nonce ‖ AES-GCM(zlib(turn ‖ 0 ‖ text))`, with the tenant as associated
data. The nonce is derived from the plaintext and the tenant, so that a turn's thought has the same
blob in every process, and no nonce is used twice. Equal thoughts of two turns have different blobs:
a blob shows its turn.
"""

import base64
import binascii
import hashlib
import hmac
import zlib
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VERSION = b"\x02"
_NONCE_BYTES = 12
_LEVEL = 1
"""Low, because sealing delays the tokens of other turns. 16,000 characters of English take 0.06 ms
and 7.1 kB; with level 6, 0.28 ms and 6.4 kB."""
MAX_TEXT_BYTES = 16 * 1024 * 1024
"""A blob with more text is refused."""


def secret(key_file: str | None, model: str) -> bytes:
    """The deployment's secret: the file's content, else one from the model's name. Raises
    OSError."""
    if key_file:
        return Path(key_file).read_bytes().strip()
    return b"turnwire:" + model.encode()


class Sealer:
    """Makes a deployment's `TenantSealer`s. Thread-safe."""

    def __init__(self, key: bytes) -> None:
        """`key`: any secret; the cipher's keys are derived from it."""
        self._cipher = AESGCM(
            hashlib.blake2b(key, digest_size=32, person=b"turnwire-seal").digest()
        )
        self._nonce_key = hashlib.blake2b(key, digest_size=32, person=b"turnwire-nonce").digest()
        self._tenants: dict[str | None, TenantSealer] = {}

    @classmethod
    def load(cls, key_file: str | None, model: str) -> "Sealer":
        """Makes the deployment's sealer. Without a key file the key is derived from the model's
        name: blobs then work across restarts and processes, but anyone with the name could make
        one.

        Raises:
            OSError: the file cannot be read.
        """
        return cls(secret(key_file, model))

    def of(self, tenant: str | None) -> "TenantSealer":
        """The sealer of one tenant, always the same object. None: the only tenant of a server
        without keys."""
        sealer = self._tenants.get(tenant)
        return sealer or self._tenants.setdefault(
            tenant, TenantSealer(self._cipher, self._nonce_key, tenant)
        )


class TenantSealer:
    """Seals and opens thoughts of one tenant. Thread-safe."""

    def __init__(self, cipher: AESGCM, nonce_key: bytes, tenant: str | None) -> None:
        self._cipher = cipher
        self._nonce_key = nonce_key
        self._bound_to = VERSION
        if tenant is not None:
            self._bound_to += b"=" + tenant.encode("utf-8", "surrogatepass")

    def seal(self, text: str, turn: str = "") -> str:
        """The blob of a thought. `turn`: the id of its turn, without NUL."""
        packed = zlib.compress(f"{turn}\0{text}".encode(), _LEVEL)
        bound = len(self._bound_to).to_bytes(4) + self._bound_to
        nonce = hmac.digest(self._nonce_key, bound + packed, "sha256")[:_NONCE_BYTES]
        box = self._cipher.encrypt(nonce, packed, self._bound_to)
        return base64.urlsafe_b64encode(VERSION + nonce + box).decode()

    def open(self, blob: str) -> str | None:
        """The thought, or None for a blob that is foreign, damaged or made with another key."""
        try:
            raw = base64.b64decode(blob.encode("ascii"), altchars=b"-_", validate=True)
            if raw[:1] != VERSION or len(raw) < 1 + _NONCE_BYTES + 16:
                return None
            packed = self._cipher.decrypt(
                raw[1 : 1 + _NONCE_BYTES], raw[1 + _NONCE_BYTES :], self._bound_to
            )
            unpacker = zlib.decompressobj()
            text = unpacker.decompress(packed, MAX_TEXT_BYTES)
            return text.decode().partition("\0")[2] if unpacker.eof else None
        except (InvalidTag, binascii.Error, ValueError, zlib.error):
            return None
