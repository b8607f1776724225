"""Allowances: concurrency and token buckets, by a clock of our own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RateLimited
from services.frontend.allowance import Allowance, Bucket, Rate
from services.frontend.keys import Limits
from services.frontend.rate_headers import duration, rate_headers


def refused(allowance: Allowance, now: float) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        allowance.enter(now)
    return caught.value


def test_a_bucket_fills_in_a_minute() -> None:
    bucket = Bucket(60, 0.0)
    bucket.take(60, 0.0)
    assert bucket.wait_s(1, 0.0) == pytest.approx(1.0)
    assert bucket.level(30.0) == pytest.approx(30)
    assert bucket.level(1e9) == 60
    bucket.take(90, 60.0)
    assert bucket.level(60.0) == pytest.approx(-30)
    assert bucket.wait_s(1, 60.0) == pytest.approx(31)


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 5)), max_size=60), st.integers(1, 20))
def test_no_window_of_a_minute_gives_more_than_two_sizes(steps: list[tuple[float, int]], size: int) -> None:
    """A full bucket and what comes back meanwhile: never more, however the requests lie."""
    bucket, now, taken = Bucket(size, 0.0), 0.0, []
    for pause, amount in steps:
        now += pause
        if bucket.wait_s(amount, now) == 0:
            bucket.take(amount, now)
            taken.append((now, amount))
    for start, _ in taken:
        assert sum(amount for at, amount in taken if start <= at < start + 60) <= 2 * size


def test_concurrency_counts_what_is_open() -> None:
    allowance = Allowance(Limits(concurrency=2), 0.0)
    allowance.enter(0.0)
    allowance.enter(0.0)
    error = refused(allowance, 0.0)
    assert error.info.retry_after_s == 1.0
    assert "2 concurrent requests" in error.info.message
    assert allowance.open == 2
    allowance.leave()
    allowance.enter(0.0)


def test_requests_a_minute() -> None:
    allowance = Allowance(Limits(requests_per_minute=2), 0.0)
    for _ in range(2):
        allowance.enter(0.0)
        allowance.leave()
    error = refused(allowance, 0.0)
    assert error.info.retry_after_s == pytest.approx(30)
    assert error.info.message.endswith("Please try again in 30.0s.")
    assert allowance.open == 0
    allowance.enter(30.0)
    assert allowance.rates(30.0)["requests"] == Rate(2, 0, pytest.approx(60))


def test_a_refused_request_costs_nothing() -> None:
    allowance = Allowance(Limits(concurrency=1, requests_per_minute=2), 0.0)
    allowance.enter(0.0)
    for _ in range(5):
        refused(allowance, 0.0)
    allowance.leave()
    allowance.enter(0.0)


def test_tokens_are_paid_afterwards_and_debts_are_waited_for() -> None:
    allowance = Allowance(Limits(tokens_per_minute=600), 0.0)
    allowance.enter(0.0)
    allowance.spend(900, 0.0)
    assert refused(allowance, 0.0).info.retry_after_s == pytest.approx(30.1)
    assert allowance.rates(0.0)["tokens"] == Rate(600, 0, pytest.approx(90))
    allowance.enter(30.2)


def test_counting_has_a_rate_of_its_own() -> None:
    allowance = Allowance(Limits(requests_per_minute=1), 0.0)
    allowance.count(0.0)
    with pytest.raises(RateLimited, match="1 counting requests per minute"):
        allowance.count(0.0)
    allowance.enter(0.0)


def test_other_limits_keep_what_was_used() -> None:
    allowance = Allowance(Limits(requests_per_minute=10), 0.0)
    for _ in range(10):
        allowance.enter(0.0)
    allowance.change(Limits(requests_per_minute=12), 0.0)
    assert allowance.rates(0.0)["requests"].remaining == 2
    allowance.change(Limits(), 0.0)
    assert allowance.rates(0.0) == {}
    allowance.change(Limits(requests_per_minute=3), 0.0)
    assert allowance.rates(0.0)["requests"].remaining == 3
    assert allowance.open == 10


def test_headers_of_both_apis() -> None:
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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.25, "250ms"),
        (0.9996, "1s"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.96, "1m0s"),
        (60, "1m0s"),
        (359.7, "6m0s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
