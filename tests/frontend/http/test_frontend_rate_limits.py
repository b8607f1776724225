"""Limits of keys: concurrency and token buckets, by a clock that the test sets."""

from contextlib import ExitStack

import pytest

from schemas.errors import RateLimited
from services.frontend.http.keys import Limits
from services.frontend.http.rate_limits import Rate, RateLimiter, rate_headers
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import messages
from tests.kit.clock import Clock
from tests.kit.frontend import serving


@pytest.fixture
def clock() -> Clock:
    return Clock()


def enter(limiter: RateLimiter) -> ExitStack:
    """Begins a request; `close` ends it."""
    request = ExitStack()
    request.enter_context(limiter.request())
    return request


def refused(limiter: RateLimiter) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        enter(limiter)
    return caught.value


def test_requests_per_minute_are_limited(clock: Clock) -> None:
    limiter = RateLimiter(Limits(concurrency=1, requests_per_minute=2), clock)
    first = enter(limiter)
    for _ in range(5):
        refused(limiter)  # which costs nothing
    first.close()
    enter(limiter).close()
    error = refused(limiter)
    assert error.info.retry_after_s == pytest.approx(30)
    assert error.info.message.endswith("Please try again in 30.0s.")
    assert limiter.open == 0
    clock.now = 30.0
    enter(limiter)
    rate = limiter.rates()["requests"]
    assert (rate.limit, rate.remaining) == (2, 0)
    assert rate.reset_s == pytest.approx(60)


def test_tokens_are_charged_afterwards_and_debt_delays_requests(clock: Clock) -> None:
    limiter = RateLimiter(Limits(tokens_per_minute=600), clock)
    enter(limiter)
    limiter.spend(900)
    assert refused(limiter).info.retry_after_s == pytest.approx(30.1)
    rate = limiter.rates()["tokens"]
    assert (rate.limit, rate.remaining) == (600, 0)
    assert rate.reset_s == pytest.approx(90)
    clock.now = 30.2
    enter(limiter)
    clock.now = 1e9
    assert limiter.rates()["tokens"].remaining == 600, "never more than a minute's"


def test_changed_limits_keep_the_usage(clock: Clock) -> None:
    limiter = RateLimiter(Limits(requests_per_minute=10), clock)
    requests = [enter(limiter) for _ in range(10)]
    limiter.change(Limits(requests_per_minute=12))
    assert limiter.rates()["requests"].remaining == 2
    limiter.change(Limits())
    assert limiter.rates() == {}
    limiter.change(Limits(requests_per_minute=3))
    assert limiter.rates()["requests"].remaining == 3
    assert limiter.open == len(requests)


def test_rate_headers_have_the_form_of_the_api() -> None:
    rates = {"requests": Rate(60, 41, 19.0), "tokens": Rate(1000, 0, 75.5)}
    assert rate_headers(rates, "anthropic", 1_800_000_000.0) == {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "41",
        "anthropic-ratelimit-requests-reset": "2027-01-15T08:00:19Z",
        "anthropic-ratelimit-tokens-limit": "1000",
        "anthropic-ratelimit-tokens-remaining": "0",
        "anthropic-ratelimit-tokens-reset": "2027-01-15T08:01:16Z",
    }
    assert rate_headers(rates, "openai", 0.0) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "41",
        "x-ratelimit-reset-requests": "19s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m16s",
    }


async def test_log_and_metrics_name_the_limit() -> None:
    cases = {
        "requests": FrontendConfig(key_requests_per_minute=1),
        "tokens": FrontendConfig(key_tokens_per_minute=1),
    }
    for reason, config in cases.items():
        async with serving(config=config) as served:
            replies = [await served.post("/v1/messages", messages()) for _ in range(2)]
            assert [reply.status for reply in replies] == [200, 429]
            assert served.lines[-1]["reason"] == reason
            count = served.registry.get_sample_value(
                "turnwire_rate_limited_requests_total", {"reason": reason}
            )
            assert count == 1
