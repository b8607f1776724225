"""Times between tokens: batches are spread over their tokens, and no time is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from schemas.events import Finish, FinishReason, Usage
from services.frontend.pipeline.metrics import FrontendMetrics, TokenGaps, TurnRecord

NAME = "turnwire_inter_token_latency_seconds"


class Turn:
    """A turn whose batches arrive at given times."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.now = 0.0
        self.record = TurnRecord(FrontendMetrics(self.registry), 0.0, lambda: self.now)
        self.record.opened("m")

    def batch(self, at: float, frames: int = 1) -> None:
        self.now = at
        self.record.batch(frames=frames)

    def finish(self, output: int) -> None:
        self.record.ends(Finish(FinishReason.STOP, 1, Usage(prompt=1, output=output)))
        self.record.close("messages")

    def value(self, suffix: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"{NAME}_{suffix}", {"model": "m", **labels})


def test_one_token_a_batch_is_measured_as_it_came() -> None:
    turn = Turn()
    for at in (1.0, 1.02, 1.04, 1.33):
        turn.batch(at)
    turn.finish(output=4)
    assert turn.value("count") == 3
    assert turn.value("sum") == pytest.approx(0.33)
    assert turn.value("bucket", le="0.025") == 2
    assert turn.value("bucket", le="0.3") == 3


def test_a_batch_of_many_tokens_is_spread_over_them() -> None:
    turn = Turn()
    for at in (1.0, 1.08, 1.16, 1.24):
        turn.batch(at)
    turn.finish(output=13)
    assert turn.value("count") == 12
    assert turn.value("sum") == pytest.approx(0.24)
    assert turn.value("bucket", le="0.025") == 12


def test_frames_that_came_together_share_their_gap() -> None:
    turn = Turn()
    turn.batch(1.0)
    turn.batch(2.0, frames=100)
    turn.finish(output=101)
    assert turn.value("count") == turn.value("bucket", le="0.01") == 100


def test_a_turn_that_was_given_up_counts_its_batches() -> None:
    turn = Turn()
    for at in (1.0, 1.5, 2.0):
        turn.batch(at)
    turn.record.close("messages")
    assert turn.value("count") == 2


@given(st.lists(st.floats(0, 20), min_size=1, max_size=40), st.integers(1, 2000))
def test_no_token_and_no_time_is_lost(gaps: list[float], tokens: int) -> None:
    batches = TokenGaps()
    for gap in gaps:
        batches.observe(gap, 1)
    spread = batches.per_token(tokens)
    assert sum(spread.counts) == tokens
    assert sum(spread.sums) <= sum(gaps) * (1 + 1e-9)
    if tokens >= len(gaps):
        assert sum(spread.sums) == pytest.approx(sum(gaps))
