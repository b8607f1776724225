"""Times between tokens: one observation for each token, whatever it came with, and no time is
lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from schemas.conversation import Client
from services.frontend.turns.answer_record import AnswerRecord
from services.frontend.turns.metrics import FrontendMetrics

NAME = "turnwire_inter_token_latency_seconds"


class Turn:
    """A turn with tokens that arrive at set times."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.now = 0.0
        self.record = AnswerRecord(FrontendMetrics(self.registry), 0.0)
        self.record.begin("m", Client(), self.now)

    def arrived(self, at: float, tokens: int, choice: int = 0) -> None:
        """`tokens`: since the start of the turn."""
        self.now = at
        self.record.record_batch(tokens, at, choice)

    def value(self, suffix: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"{NAME}_{suffix}", {"model": "m", **labels})


def test_single_tokens_are_measured_one_by_one() -> None:
    turn = Turn()
    for tokens, at in enumerate((1.0, 1.02, 1.04, 1.33), 1):
        turn.arrived(at, tokens)
    assert turn.value("count") == 3
    assert turn.value("sum") == pytest.approx(0.33)
    assert turn.value("bucket", le="0.025") == 2
    assert turn.value("bucket", le="0.3") == 3


def test_batch_counts_once_for_each_of_its_tokens() -> None:
    turn = Turn()
    turn.arrived(1.0, 1)
    turn.arrived(1.02, 2)
    turn.arrived(1.52, 52)
    assert turn.value("count") == 51
    assert turn.value("sum") == pytest.approx(0.52)
    assert turn.value("bucket", le="0.01") == 50, "fifty tokens in 500 ms are fifty of 10 ms"
    assert turn.value("bucket", le="0.025") == 51


def test_first_batch_is_the_time_to_the_first_token() -> None:
    turn = Turn()
    turn.arrived(1.0, 8)
    turn.arrived(1.02, 9)
    assert turn.value("count") == turn.value("bucket", le="0.025") == 1
    assert (
        turn.registry.get_sample_value("turnwire_time_to_first_token_seconds_sum", {"model": "m"})
        == 1.0
    )


def test_event_without_text_was_made_by_a_token() -> None:
    turn = Turn()
    turn.arrived(1.0, 0)
    turn.arrived(1.02, 2)
    assert turn.value("count") == 1


def test_repeated_tokens_are_not_counted_again() -> None:
    turn = Turn()
    for tokens, at in ((1, 1.0), (5, 2.0), (3, 2.1), (5, 2.2), (6, 3.0)):
        turn.arrived(at, tokens)
    assert turn.value("count") == 5
    assert turn.value("sum") == pytest.approx(2.0), "the outage is the gap of the token behind it"
    assert turn.value("bucket", le="0.75") == 4


def test_choices_have_their_own_gaps() -> None:
    turn = Turn()
    for at, tokens in ((1.0, 1), (1.2, 2)):
        turn.arrived(at, tokens)
        turn.arrived(at, tokens, choice=1)
    assert turn.value("count") == 2
    assert turn.value("bucket", le="0.1") == 0


def test_abandoned_request_has_its_gaps_measured() -> None:
    turn = Turn()
    for tokens, at in enumerate((1.0, 1.5, 2.0), 1):
        turn.arrived(at, tokens)
    turn.record.close("messages", turn.now)
    assert turn.value("count") == 2


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 200)), min_size=1, max_size=40))
def test_no_token_and_no_time_is_lost(batches: list[tuple[float, int]]) -> None:
    turn = Turn()
    at = float(tokens := 1)
    turn.arrived(at, tokens)
    for gap, count in batches:
        at, tokens = at + gap, tokens + count
        turn.arrived(at, tokens)
    assert turn.value("count") == turn.value("bucket", le="+Inf") == tokens - 1
    assert turn.value("sum") == pytest.approx(at - 1.0)
