"""What one holder of keys has left: requests at once, requests and tokens a minute. Pure; times are the loop's.

Rates are token buckets: a minute's worth can be used at once, and comes back evenly. What a request will cost in tokens
is known only when it is over, so tokens are paid afterwards, and a holder in debt waits until it is paid.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from schemas.errors import RateLimited
from services.frontend.keys import Limits

RateApi: TypeAlias = Literal["anthropic", "openai"]

_MINUTE_S = 60.0
CONCURRENCY_RETRY_S = 1.0
"""When a place becomes free is not known."""


class Bucket:
    """A token bucket of `size`, full at first, that fills in a minute."""

    __slots__ = ("_at", "_level", "size")

    def __init__(self, size: int, now: float) -> None:
        self.size = size
        self._level = float(size)
        self._at = now

    def resize(self, size: int, now: float) -> None:
        """Another size from now on; what was used stays used."""
        used = self.size - self.level(now)
        self.size = size
        self._level, self._at = size - used, now

    def level(self, now: float) -> float:
        """What is left; below 0: the debt."""
        return min(float(self.size), self._level + (now - self._at) * self.size / _MINUTE_S)

    def take(self, amount: float, now: float) -> None:
        """Takes, also what is not there."""
        self._level, self._at = self.level(now) - amount, now

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until so much is there."""
        return max(0.0, (amount - self.level(now)) * _MINUTE_S / self.size)


class Rate(Struct, frozen=True):
    """How a limited rate stands."""

    limit: int
    remaining: int
    reset_s: float
    """Seconds until all of it is there again."""


class Allowance:
    """One holder's. `limits` may change while requests are open."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.open = 0
        """Requests that are being answered."""
        self._limits = limits
        self._requests = _bucket(limits.requests_per_minute, now)
        self._counts = _bucket(limits.requests_per_minute, now)
        self._tokens = _bucket(limits.tokens_per_minute, now)

    def change(self, limits: Limits, now: float) -> None:
        """Other limits from now on."""
        if limits == self._limits:
            return
        self._limits = limits
        self._requests = _resized(self._requests, limits.requests_per_minute, now)
        self._counts = _resized(self._counts, limits.requests_per_minute, now)
        self._tokens = _resized(self._tokens, limits.tokens_per_minute, now)

    def enter(self, now: float) -> None:
        """A request begins; `leave` must follow. Raises RateLimited, and then nothing was taken."""
        if self._limits.concurrency is not None and self.open >= self._limits.concurrency:
            raise _limited(f"{self._limits.concurrency} concurrent requests", CONCURRENCY_RETRY_S)
        if self._tokens is not None:
            # One whole token must be there: a bucket that has just paid its debt is not to be drawn by many at once.
            _require(self._tokens, f"{self._tokens.size} tokens per minute", now)
        if self._requests is not None:
            _require(self._requests, f"{self._requests.size} requests per minute", now)
            self._requests.take(1, now)
        self.open += 1

    def leave(self) -> None:
        """A request that entered is over."""
        self.open -= 1

    def count(self, now: float) -> None:
        """A request that decodes nothing (counting, tokenizing): these have a rate of their own, of the same size,
        since agents send dozens of them at once. Raises RateLimited."""
        if self._counts is not None:
            _require(self._counts, f"{self._counts.size} counting requests per minute", now)
            self._counts.take(1, now)

    def spend(self, tokens: int, now: float) -> None:
        """Pays for what a request took."""
        if self._tokens is not None:
            self._tokens.take(tokens, now)

    def rates(self, now: float) -> dict[str, Rate]:
        """The rates that are limited: `requests`, `tokens`."""
        buckets = {"requests": self._requests, "tokens": self._tokens}
        return {
            name: Rate(bucket.size, max(0, int(bucket.level(now))), bucket.wait_s(bucket.size, now))
            for name, bucket in buckets.items()
            if bucket is not None
        }


def _bucket(size: int | None, now: float) -> Bucket | None:
    return None if size is None else Bucket(size, now)


def _resized(bucket: Bucket | None, size: int | None, now: float) -> Bucket | None:
    if bucket is None or size is None:
        return _bucket(size, now)
    bucket.resize(size, now)
    return bucket


def _require(bucket: Bucket, what: str, now: float) -> None:
    wait = bucket.wait_s(1, now)
    if wait > 0:
        raise _limited(what, wait)


def _limited(what: str, wait_s: float) -> RateLimited:
    # Codex reads the time from the text where it has no header.
    return RateLimited(
        f"This request would exceed the limit of {what} of your API key. Please try again in {max(wait_s, 0.1):.1f}s.",
        retry_after_s=wait_s,
    )
