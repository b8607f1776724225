"""Limits each API key: concurrent requests, requests and tokens per minute. Pure: the clock is
passed in.

Rates are token buckets, as in the native APIs: the tokens of a minute can be used at once, and
refill evenly. A request's tokens are charged when it has ended, so a bucket may be in debt.
Requests are refused until it is paid.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from typing import Literal, TypeAlias

from msgspec import Struct

from schemas.errors import RateLimited
from services.frontend.http.keys import Limits

RateApi: TypeAlias = Literal["anthropic", "openai"]
Clock: TypeAlias = Callable[[], float]
"""Returns the time in seconds."""

RATES = ("requests", "tokens")
"""The rates that clients see in headers."""
_HEADERS: Mapping[RateApi, str] = {
    "anthropic": "anthropic-ratelimit-{rate}-{field}",
    "openai": "x-ratelimit-{field}-{rate}",
}
_MINUTE_S = 60.0
CONCURRENCY_RETRY_S = 1.0
"""The `Retry-After` of a request over the concurrency limit: it is unknown when another one will
end."""


class TokenBucket:
    """Holds `size` tokens, and is full at first. An empty bucket refills in a minute. A negative
    level is a debt."""

    def __init__(self, size: int, clock: Clock) -> None:
        self.size = size
        self._clock = clock
        self._level = float(size)
        self._updated = clock()

    def resize(self, size: int) -> None:
        """Changes the size. Tokens that were used stay used."""
        self._level = self.level() + size - self.size
        self._updated = self._clock()
        self.size = size

    def level(self) -> float:
        """Returns the remaining tokens."""
        refilled = (self._clock() - self._updated) * self.size / _MINUTE_S
        return min(float(self.size), self._level + refilled)

    def spend(self, amount: float) -> None:
        """Spends tokens. The level may become negative."""
        self._level = self.level() - amount
        self._updated = self._clock()

    def wait_s(self, amount: float) -> float:
        """Returns the seconds until the bucket holds `amount` tokens."""
        return max(0.0, (amount - self.level()) * _MINUTE_S / self.size)


class Rate(Struct, frozen=True):
    """The state of one limited rate."""

    limit: int
    remaining: int
    reset_s: float
    """Seconds until the bucket is full."""


class RateLimiter:
    """The limits of one key holder, and what they have used."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        """`clock` is monotonic."""
        self.open = 0
        """Requests in progress."""
        self._clock = clock
        self._limits = Limits()
        self._buckets: dict[str, TokenBucket] = {}
        self.change(limits)

    def change(self, limits: Limits) -> None:
        """Changes the limits. Requests may be open."""
        if limits == self._limits:
            return
        self._limits = limits
        requests = limits.requests_per_minute
        # Counting and tokenizing have their own rate of the same size: agents send dozens of these
        # requests at once.
        sizes = {
            "requests": requests,
            "counting requests": requests,
            "tokens": limits.tokens_per_minute,
        }
        for name, size in sizes.items():
            if size is None:
                self._buckets.pop(name, None)
            elif name in self._buckets:
                self._buckets[name].resize(size)
            else:
                self._buckets[name] = TokenBucket(size, self._clock)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Counts a request that decodes tokens as open. Raises RateLimited on entering, and then
        charges nothing."""
        if self._limits.concurrency is not None and self.open >= self._limits.concurrency:
            limit = f"{self._limits.concurrency} concurrent requests"
            raise _limit_error(limit, "concurrency", CONCURRENCY_RETRY_S)
        # One whole token is required: otherwise many requests would enter at the moment that a debt
        # is paid.
        self._require("tokens")
        self._require("requests", amount=1)
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    def count(self) -> None:
        """Charges a request that decodes nothing. Raises RateLimited."""
        self._require("counting requests", amount=1)

    def spend(self, tokens: int) -> None:
        """Charges the tokens of a request."""
        if "tokens" in self._buckets:
            self._buckets["tokens"].spend(tokens)

    def rates(self) -> dict[str, Rate]:
        """Returns the state of the limited rates among `requests` and `tokens`."""
        buckets = {name: self._buckets[name] for name in RATES if name in self._buckets}
        return {
            name: Rate(bucket.size, max(0, int(bucket.level())), bucket.wait_s(bucket.size))
            for name, bucket in buckets.items()
        }

    def _require(self, name: str, *, amount: int = 0) -> None:
        bucket = self._buckets.get(name)
        if bucket is None:
            return
        wait_s = bucket.wait_s(1)
        if wait_s > 0:
            reason = name.removesuffix(" requests")
            raise _limit_error(f"{bucket.size} {name} per minute", reason, wait_s)
        bucket.spend(amount)


def _limit_error(limit: str, reason: str, wait_s: float) -> RateLimited:
    # Codex reads the time from the text if there is no header.
    return RateLimited(
        f"This request would exceed the limit of {limit} of your API key. "
        f"Please try again in {max(wait_s, 0.1):.1f}s.",
        reason,
        retry_after_s=wait_s,
    )


def rate_headers(rates: Mapping[str, Rate], api: RateApi, now: float) -> dict[str, str]:
    """Returns the limit, remainder and reset of each rate, as an API's headers.

    `now`: Unix time.
    """
    headers: dict[str, str] = {}
    for name, rate in rates.items():
        headers[_header_name(api, name, "limit")] = str(rate.limit)
        headers[_header_name(api, name, "remaining")] = str(rate.remaining)
        headers[_header_name(api, name, "reset")] = _reset(api, rate, now)
    return headers


def rate_header_names() -> list[str]:
    """Returns the names of all headers that `rate_headers` makes."""
    return [
        _header_name(api, name, field)
        for api, name, field in product(_HEADERS, RATES, ("limit", "remaining", "reset"))
    ]


def _header_name(api: RateApi, rate: str, field: str) -> str:
    return _HEADERS[api].format(rate=rate, field=field)


def _reset(api: RateApi, rate: Rate, now: float) -> str:
    if api == "openai":
        return format_duration(rate.reset_s)
    full_at = datetime.fromtimestamp(math.ceil(now + rate.reset_s), UTC)
    return full_at.strftime("%Y-%m-%dT%H:%M:%SZ")


def format_duration(seconds: float) -> str:
    """Returns a time as OpenAI writes it: `250ms`, `1.5s`, `6m0s`."""
    if round(seconds * 1000) < 1000:
        return f"{round(seconds * 1000)}ms"
    if round(seconds * 10) < 600:
        return f"{round(seconds * 10) / 10:g}s"
    minutes, seconds_left = divmod(round(seconds), 60)
    return f"{minutes}m{seconds_left}s"
