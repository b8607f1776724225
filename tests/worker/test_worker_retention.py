"""Tests the limit on what a tenant's turns may retain."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from schemas.conversation import Sampling
from schemas.requests import GenerateRequest
from services.worker.retention import SLACK, TENANT_SHARE, TOTAL_SHARE, RetentionQuota

CAPACITY = 100_000
LIMIT = TENANT_SHARE * CAPACITY


def asked(tenant: str, session: str, retain_s: int, turn: str = "t") -> GenerateRequest:
    own: dict[str, Any] = {"retain_s": retain_s, "tenant": tenant, "session": session}
    return GenerateRequest(turn, 1, "m", b"", "p", "f", Sampling(), [], Raw(b"{}"), **own)


def retained_s(quota: RetentionQuota, request: GenerateRequest, *prompt: Any) -> int:
    """The seconds for which a turn's prompt is retained when the engine opens the turn."""
    seconds = quota.seconds(request, *prompt)
    if seconds:
        quota.record(request, *prompt)
    return seconds


TENANTS = "abcdefgh"
TURNS = st.tuples(
    st.sampled_from(TENANTS),
    st.sampled_from("12345"),
    st.sampled_from([0, 300, 3600]),
    st.integers(0, 30_000),
    st.integers(0, 900),
    st.floats(0.0, 1.0),
)


@given(st.lists(TURNS, max_size=60))
def test_neither_a_tenant_nor_all_together_retain_more_than_their_share(
    turns: list[tuple[str, str, int, int, int, float]],
) -> None:
    """`computed` are tokens of prompts that were not in the cache: each is retained until its own
    time, at least."""
    quota, now = RetentionQuota(CAPACITY), 0.0
    computed: list[tuple[str, float, int]] = []
    for number, (tenant, session, retain_s, tokens, pause, share) in enumerate(turns):
        now, held = now + pause, int(tokens * share)
        request = asked(tenant, session, retain_s, f"t{number}")
        seconds = retained_s(quota, request, tokens, held, now)
        assert seconds in (0, retain_s)
        if seconds:
            computed.append((tenant, now + seconds, tokens - held))
        for tenants, limit in (
            (TENANTS, TOTAL_SHARE * CAPACITY),
            *((one, LIMIT) for one in TENANTS),
        ):
            living = [count for who, until, count in computed if who in tenants and until > now]
            assert sum(living) <= limit + SLACK * len(living)


@given(st.lists(TURNS, max_size=30), st.integers(0, 20_000))
def test_tenants_do_not_take_from_each_other(
    turns: list[tuple[str, str, int, int, int, float]], tokens: int
) -> None:
    quota = RetentionQuota(CAPACITY)
    for _, session, retain_s, count, _, share in turns:
        retained_s(quota, asked("a", session, retain_s), count, int(count * share), 0.0)
    assert retained_s(quota, asked("b", "1", 300), tokens, 0, 0.0) == 300


def test_a_session_that_grows_counts_once() -> None:
    quota = RetentionQuota(CAPACITY)
    for tokens in range(1000, 25_000, 1000):
        assert retained_s(quota, asked("", "s", 300), tokens, tokens - 1000, 0.0) == 300
    assert retained_s(quota, asked("", "other", 300), 5000, 0, 0.0) == 0
    assert retained_s(quota, asked("", "other", 300), 5000, 0, 301.0) == 300
    unknown = RetentionQuota(None)
    assert retained_s(unknown, asked("", "s", 300), 1, 0, 0.0) == 0
