"""Tests the limit on what a tenant's turns may retain."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from schemas.conversation import Sampling
from schemas.frames import GenerateRequest
from services.worker.retention import MIN_TOKENS, TENANT_SHARE, RetentionQuota

CAPACITY = 100_000
LIMIT = TENANT_SHARE * CAPACITY


def asked(tenant: str, session: str, retain_s: int) -> GenerateRequest:
    return GenerateRequest(
        "t", 1, "m", b"", "p", "f", Sampling(), [], Raw(b"{}"), retain_s=retain_s, tenant=tenant, session=session
    )


TURNS = st.tuples(
    st.sampled_from("ab"),
    st.sampled_from("12345"),
    st.sampled_from([0, 300, 3600]),
    st.integers(0, 30_000),
    st.integers(0, 900),
)


@given(st.lists(TURNS, max_size=60))
def test_no_tenant_retains_more_than_its_share(turns: list[tuple[str, str, int, int, int]]) -> None:
    quota, now = RetentionQuota(CAPACITY), 0.0
    retained: dict[tuple[str, str], tuple[float, int]] = {}
    for tenant, session, retain_s, tokens, pause in turns:
        now += pause
        seconds = quota.seconds(asked(tenant, session, retain_s), tokens, now)
        assert seconds in (0, retain_s)
        if seconds:
            until, most = retained.get((tenant, session), (0.0, 0))
            counted = max(tokens, MIN_TOKENS, most if until > now else 0)
            retained[tenant, session] = max(until, now + seconds), counted
        living = [(who, count) for (who, _), (until, count) in retained.items() if until > now]
        assert all(sum(count for who, count in living if who == one) <= LIMIT for one in "ab")


@given(st.lists(TURNS, max_size=30), st.integers(0, 20_000))
def test_tenants_do_not_take_from_each_other(turns: list[tuple[str, str, int, int, int]], tokens: int) -> None:
    quota = RetentionQuota(CAPACITY)
    for _, session, retain_s, count, _ in turns:
        quota.seconds(asked("a", session, retain_s), count, 0.0)
    assert quota.seconds(asked("b", "1", 300), tokens, 0.0) == 300


def test_a_session_that_grows_counts_once() -> None:
    quota = RetentionQuota(CAPACITY)
    for tokens in range(1000, 25_000, 1000):
        assert quota.seconds(asked("", "s", 300), tokens, 0.0) == 300
    assert quota.seconds(asked("", "other", 300), 5000, 0.0) == 0
    assert quota.seconds(asked("", "other", 300), 5000, 301.0) == 300


def test_a_cache_of_unknown_size_retains_nothing() -> None:
    assert RetentionQuota(None).seconds(asked("", "s", 300), 1, 0.0) == 0
