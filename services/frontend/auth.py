"""API keys. The file holds hashes only; what a client sends is hashed and compared in constant time.

One key a line, `name:sha256hex` or `sha256hex`; empty lines and lines with `#` are skipped. The hash of a new key:

    printf %s "$KEY" | sha256sum
"""

import hashlib
import hmac
import re
from pathlib import Path

from aiohttp import web
from msgspec import Struct

from schemas.errors import Unauthorized

OPEN_PATHS = frozenset({"/", "/live", "/ready", "/health", "/metrics", "/api/hello"})
"""What probes, scrapers and a client's first look ask for without a key."""

_LINE = re.compile(r"(?:(?P<name>[A-Za-z0-9._@-]+):)?(?P<digest>[0-9a-fA-F]{64})")


class Key(Struct, frozen=True):
    """An accepted key: who has it, and its SHA-256."""

    name: str
    digest: bytes


class KeyRing:
    """The accepted keys."""

    def __init__(self, keys: list[Key]) -> None:
        self._keys = keys

    @classmethod
    def load(cls, path: str) -> "KeyRing":
        """Reads a key file. Raises ValueError, naming file and line, for a line that is no key and for no key at all.

        Raises OSError if there is no such file.
        """
        keys = []
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            match = _LINE.fullmatch(text)
            if match is None:
                raise ValueError(f"{path}:{number}: not a key; write `name:` and the key's SHA-256 in hex")
            digest = bytes.fromhex(match["digest"])
            keys.append(Key(match["name"] or match["digest"][:8].lower(), digest))
        if not keys:
            raise ValueError(f"{path} holds no keys")
        return cls(keys)

    def tenant(self, presented: str) -> str | None:
        """The name of a key; None if it is not accepted. Takes as long for every key."""
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
        name = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                name = key.name
        return name


def authenticate(request: web.Request, ring: KeyRing) -> str | None:
    """The tenant of a request; None for a path that is open to all. Raises Unauthorized.

    The SDKs send `Authorization: Bearer` or `x-api-key`, depending on their version; either is taken, and with both,
    one that is good suffices.
    """
    if request.path in OPEN_PATHS:
        return None
    presented = [key for key in (request.headers.get("x-api-key"), _bearer(request)) if key]
    if not presented:
        raise Unauthorized("x-api-key header is required")
    for key in presented:
        tenant = ring.tenant(key)
        if tenant is not None:
            return tenant
    raise Unauthorized("invalid x-api-key")


def _bearer(request: web.Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
