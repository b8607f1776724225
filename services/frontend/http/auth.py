"""Authenticates requests by API key and holds each key's limits.

The key file holds hashes only; a request's key is hashed and compared in constant time. The file
may change while the frontend runs: removed keys are refused from then on, also the last one, and
what a holder used this minute stays counted.
"""

import hashlib
import hmac
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from schemas.control import ModelCard
from schemas.errors import Unauthorized
from services.frontend.http.errors import ForbiddenModel
from services.frontend.http.held_bytes import HeldBytes
from services.frontend.http.keys import Key, Limits, parse_keys
from services.frontend.http.rate_limits import Clock, RateLimiter
from services.rollouts.rollout import Rollout
from services.runtime.observability.telemetry import FilteringBoundLogger

OPEN_PATHS = frozenset(
    {"/", "/live", "/ready", "/health", "/metrics", "/api/hello", "/openapi.json"}
)
"""Paths that need no key, for probes, scrapers and the first request of clients."""

MAX_REMOVED = 10_000
"""Most keys that are known to be removed."""


def load_keys(path: str, defaults: Limits) -> list[Key]:
    """Reads a key file. Raises ValueError as `parse_keys`, and OSError."""
    return parse_keys(Path(path).read_text(encoding="utf-8"), path, defaults)


def find_key(keys: Sequence[Key], text: str) -> Key | None:
    """Returns the key with this text, if there is one. Takes equally long for every text."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
    match = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            match = key
    return match


class Caller:
    """The sender of a request: its rights and limits."""

    def __init__(self, limiter: RateLimiter, held: HeldBytes, key: Key | None = None) -> None:
        self.rollout: Rollout | None = None
        """Set for a request of a rollout's agent: it has the rollout's id in its address or as its
        key."""
        self.limiter = limiter
        self.held = held
        """The bytes of all its requests that wait."""
        self.spend = limiter.spend
        self.key = key
        self.tenant: str | None = None
        """The holder of the key; None where the frontend has no keys."""
        self.priority: int | None = None
        """The priority of all its turns, if the key has one."""
        if key is not None:
            self.tenant = key.name
            self.priority = key.priority

    @property
    def owner(self) -> str | None:
        """Who may read what the request stores: its rollout, or its tenant."""
        return self.tenant if self.rollout is None else self.rollout.id

    @property
    def is_operator(self) -> bool:
        """Whether the caller may change engines. Without keys everyone may, but no agent of a
        rollout."""
        return self.rollout is None and (self.key is None or self.key.operator)

    def sees(self, card: ModelCard) -> bool:
        """Returns whether the caller may use a model. Only such models are listed."""
        return self.key is None or self.key.allows(card)

    def model_for(self, name: str) -> str:
        """Returns the model that decodes a request which names `name`: a rollout has its own."""
        if self.rollout is None:
            return name
        return self.rollout.model or name

    def permit(self, card: ModelCard, name: str) -> None:
        """Raises ForbiddenModel for a model that the caller may not use. `name`: the model's
        name in the request."""
        if not self.sees(card):
            raise ForbiddenModel(name or card.served_name)


def anyone() -> Caller:
    """Makes a caller with all rights and no limits."""
    return Caller(RateLimiter(Limits(), time.monotonic), HeldBytes(sys.maxsize))


class Callers:
    """All callers of this frontend. `defaults`: the limits of every key; without keys, of all
    callers together."""

    def __init__(
        self,
        path: str | None,
        defaults: Limits,
        clock: Clock,
        now: Clock = time.time,
        *,
        max_held_bytes: int = sys.maxsize,
    ) -> None:
        """Raises the errors of `load_keys`, and ValueError for a file without keys, which is a
        mistake at the start.

        `clock` is monotonic; `now` returns Unix time. `max_held_bytes`: the most bytes of
        requests that wait; one caller may have half of them.
        """
        self.path = path
        self._defaults = defaults
        self._clock = clock
        self._now = now
        self._limiters: dict[str, RateLimiter] = {}
        self._held = HeldBytes(max_held_bytes)
        self._held_by: dict[str, HeldBytes] = {}
        self._keys: list[Key] | None = None
        """None: everyone may send requests."""
        self._removed: list[Key] = []
        """The keys that the file had since the start and has no more."""
        if path:
            self._keys = load_keys(path, defaults)
            if not self._keys:
                raise ValueError(f"{path} holds no keys")

    def warn_of_expired(self, log: FilteringBoundLogger) -> None:
        """Logs which keys had expired when the file was read: their dates may be mistakes."""
        expired = [key.name for key in self._keys or () if self._is_expired(key)]
        if expired:
            log.warning("keys.expired", file=self.path, names=expired)

    @property
    def open_to_all(self) -> bool:
        """Whether the frontend has no keys, so that everyone who reaches the port may use it."""
        return self._keys is None

    @property
    def open_requests(self) -> dict[str, int]:
        """Requests in progress by key holder ("" without keys), to see that none is left open."""
        return {name: limiter.open for name, limiter in self._limiters.items()}

    def reload(self, log: FilteringBoundLogger) -> None:
        """Reads the key file again. If it is missing or has no keys, no key is valid.

        Raises as `load_keys` for an existing file, and then changes nothing.
        """
        if not self.path:
            return
        former = [*(self._keys or ()), *self._removed]
        try:
            self._keys = load_keys(self.path, self._defaults)
        except FileNotFoundError:
            self._keys = []
        removed = {key.digest: key for key in former}
        for key in self._keys:
            removed.pop(key.digest, None)
        self._removed = list(removed.values())[:MAX_REMOVED]
        if not self._keys:
            log.warning("keys.none_valid", file=self.path)
        self.warn_of_expired(log)

    def identify(self, request: web.Request, *, openai: bool = False) -> Caller:
        """Returns the caller of a request. Raises Unauthorized, with OpenAI's texts if `openai`.

        SDKs send `Authorization: Bearer` or `x-api-key`, depending on their version. Either is
        accepted; of two keys, one must be valid.
        """
        if request.path in OPEN_PATHS:
            return anyone()
        if self._keys is None:
            return self.caller_of("")
        texts = key_texts(request)
        if not texts:
            raise Unauthorized(_missing_key(request, openai=openai), "no_key")
        keys = [key for key in (find_key(self._keys, text) for text in texts) if key is not None]
        if not keys:
            raise self._unknown_key(texts, openai=openai)
        valid = [key for key in keys if not self._is_expired(key)]
        if not valid:
            raise _expired()
        return self._caller(valid[0].name, valid[0].limits, valid[0])

    def _unknown_key(self, texts: Sequence[str], *, openai: bool) -> Unauthorized:
        message = "Incorrect API key provided." if openai else "invalid x-api-key"
        was_removed = any(find_key(self._removed, text) for text in texts)
        return Unauthorized(message, "removed_key" if was_removed else "wrong_key")

    def renew(self, caller: Caller) -> Caller:
        """Returns the caller with the rights and limits of now. Raises Unauthorized where its key
        was removed or has expired."""
        if caller.rollout is not None:
            return self.of_rollout(caller.rollout)
        if self._keys is None or caller.key is None:
            return caller
        for key in self._keys:
            if key.digest == caller.key.digest:
                if self._is_expired(key):
                    raise _expired()
                return self._caller(key.name, key.limits, key)
        raise Unauthorized("This API key is not valid any more.", "removed_key")

    def of_rollout(self, rollout: Rollout) -> Caller:
        """Returns the caller of a rollout's requests, with the rights and limits that the key which
        made it has now. Raises as `renew`."""
        caller = self.caller_of("")
        if self._keys is not None:
            maker = Key(rollout.tenant or "", bytes.fromhex(rollout.key))
            caller = self.renew(Caller(caller.limiter, caller.held, maker))
        caller.rollout = rollout
        return caller

    def _is_expired(self, key: Key) -> bool:
        return key.expires is not None and self._now() >= key.expires

    def caller_of(self, name: str) -> Caller:
        """Returns the caller with this name and the limits of all keys. Without keys all callers
        are the one with the empty name."""
        return self._caller(name, self._defaults, None)

    def _caller(self, name: str, limits: Limits, key: Key | None) -> Caller:
        if name not in self._limiters:
            self._limiters[name] = RateLimiter(limits, self._clock)
            self._held_by[name] = HeldBytes(self._held.limit // 2, within=self._held)
        limiter = self._limiters[name]
        limiter.change(limits)
        return Caller(limiter, self._held_by[name], key)


def _expired() -> Unauthorized:
    return Unauthorized("This API key has expired.", "expired_key")


_NO_KEY = (
    "You didn't provide an API key. Send it in an Authorization header: "
    "`Authorization: Bearer YOUR_KEY`."
)


def _missing_key(request: web.Request, *, openai: bool) -> str:
    """Returns the text of the error for a request without a key."""
    if openai:
        return _NO_KEY
    if "authorization" in request.headers:
        return "x-api-key header is required: the authorization header is not `Bearer YOUR_KEY`"
    return "x-api-key header is required"


def key_texts(request: web.Request) -> list[str]:
    """Returns the keys that a request has, in either header."""
    texts = [request.headers.get("x-api-key", "")]
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        texts.append(token.strip())
    return [text for text in texts if text]
