"""Who makes a request. The key file holds hashes only; what a client sends is hashed and compared in constant time.

`keys.py` tells the form of the file. It may change while the frontend runs: keys that are gone are refused from then
on, what a holder has used in this minute stays used.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web

from schemas.control import ModelCard
from schemas.errors import Forbidden, Unauthorized
from services.frontend.allowance import Allowance, Rate
from services.frontend.keys import Key, Limits, parse_keys

OPEN_PATHS = frozenset({"/", "/live", "/ready", "/health", "/metrics", "/api/hello", "/openapi.json"})
"""What probes, scrapers and a client's first look ask for without a key."""


class KeyRing:
    """The accepted keys."""

    def __init__(self, keys: list[Key]) -> None:
        self._keys = keys

    @classmethod
    def load(cls, path: str, defaults: Limits | None = None) -> "KeyRing":
        """Reads a key file. Raises ValueError, naming file and line, for what it must not hold, OSError without one."""
        return cls(parse_keys(Path(path).read_text(encoding="utf-8"), path, defaults or Limits()))

    def find(self, presented: str) -> Key | None:
        """The key with this text; None if there is none. Takes as long for every text."""
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


class Caller:
    """Who makes a request, and what he may. One for each request."""

    def __init__(self, allowance: Allowance, clock: Callable[[], float], key: Key | None = None) -> None:
        self._allowance = allowance
        self._clock = clock
        self._key = key

    @property
    def tenant(self) -> str | None:
        """The holder of the key; None where the frontend has no keys."""
        return self._key.name if self._key else None

    @property
    def priority(self) -> int | None:
        """The priority of all his turns, if the key has one."""
        return self._key.priority if self._key else None

    def sees(self, card: ModelCard) -> bool:
        """Whether he may use a model, and so whether it is listed."""
        return self._key is None or self._key.allows(card)

    def permit(self, card: ModelCard, name: str) -> None:
        """Raises Forbidden where he may not use a model, which he asked for by `name`."""
        if not self.sees(card):
            raise Forbidden(f"Your API key may not use the model {name or card.name}.", param="model")

    @contextmanager
    def request(self) -> Iterator[None]:
        """Within it he has a request open that decodes. Raises RateLimited on entering."""
        self._allowance.enter(self._clock())
        try:
            yield
        finally:
            self._allowance.leave()

    def count(self) -> None:
        """He makes a request that decodes nothing. Raises RateLimited."""
        self._allowance.count(self._clock())

    def spend(self, tokens: int) -> None:
        """His request took so many tokens."""
        self._allowance.spend(tokens, self._clock())

    def rates(self) -> dict[str, Rate]:
        """His limited rates as they stand."""
        return self._allowance.rates(self._clock())


class Callers:
    """Everybody who may use this frontend. `defaults` hold for every key; without keys, for all callers together."""

    def __init__(
        self, path: str | None, defaults: Limits, clock: Callable[[], float], now: Callable[[], float] = time.time
    ) -> None:
        """Raises as `KeyRing.load`. `clock` is the loop's, `now` the Unix time."""
        self.path = path
        self._defaults = defaults
        self._clock = clock
        self._now = now
        self._ring = KeyRing.load(path, defaults) if path else None
        self._allowances: dict[str, Allowance] = {}

    @property
    def open_to_all(self) -> bool:
        """There are no keys: who reaches the port may use it."""
        return self._ring is None

    @property
    def open_requests(self) -> dict[str, int]:
        """Requests that are being answered, by holder ("" without keys)."""
        return {name: allowance.open for name, allowance in self._allowances.items()}

    def reload(self) -> None:
        """Reads the key file again. Raises as `KeyRing.load`, and then everything stays as it was."""
        if self.path:
            self._ring = KeyRing.load(self.path, self._defaults)

    def nobody(self) -> Caller:
        """Who asks for what is open to all."""
        return Caller(Allowance(Limits(), self._clock()), self._clock)

    def identify(self, request: web.Request, *, openai: bool = False) -> Caller:
        """The caller of a request. Raises Unauthorized, for OpenAI's clients in OpenAI's words.

        The SDKs send `Authorization: Bearer` or `x-api-key`, depending on their version; either is taken, and with
        both, one that is good suffices.
        """
        if request.path in OPEN_PATHS:
            return self.nobody()
        if self._ring is None:
            return Caller(self._allowance("", self._defaults), self._clock)
        presented = [key for key in (request.headers.get("x-api-key"), _bearer(request)) if key]
        if not presented:
            raise Unauthorized(_NO_KEY if openai else "x-api-key header is required")
        key = next((found for text in presented if (found := self._ring.find(text))), None)
        if key is None:
            raise Unauthorized("Incorrect API key provided." if openai else "invalid x-api-key")
        if key.expires is not None and self._now() >= key.expires:
            raise Unauthorized("This API key has expired.")
        return Caller(self._allowance(key.name, key.limits), self._clock, key)

    def _allowance(self, name: str, limits: Limits) -> Allowance:
        allowance = self._allowances.get(name)
        if allowance is None:
            allowance = self._allowances[name] = Allowance(limits, self._clock())
        allowance.change(limits, self._clock())
        return allowance


_NO_KEY = "You didn't provide an API key. Send it in an Authorization header: `Authorization: Bearer YOUR_KEY`."


def _bearer(request: web.Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
