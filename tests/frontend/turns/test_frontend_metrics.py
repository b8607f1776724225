"""Times between tokens: one observation for each token, whatever it came with, and no time is
lost."""

import pytest
from prometheus_client import CollectorRegistry

from schemas.conversation import Client
from services.frontend.turns.answer_record import AnswerRecord
from services.frontend.turns.metrics import FrontendMetrics
from tests.kit.every import for_rows

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


@for_rows(
    [
        # fifty tokens in 500 ms are fifty of 10 ms
        ([(1.0, 1), (1.02, 2), (1.52, 52)], 51, 0.52, {"0.01": 50, "0.025": 51}),
        # the first batch is the time to the first token
        ([(1.0, 8), (1.02, 9)], 1, 0.02, {"0.025": 1}),
        # an event without text was made by a token
        ([(1.0, 0), (1.02, 2)], 1, 0.02, {}),
        # repeated tokens are not counted; the outage is the gap of the token behind it
        ([(1.0, 1), (2.0, 5), (2.1, 3), (2.2, 5), (3.0, 6)], 5, 2.0, {"0.75": 4}),
    ]
)
def test_each_token_is_one_observation(
    arrivals: list[tuple[float, int]], count: int, total_s: float, buckets: dict[str, int]
) -> None:
    turn = Turn()
    for at, tokens in arrivals:
        turn.arrived(at, tokens)
    assert turn.value("count") == count
    assert turn.value("sum") == pytest.approx(total_s)
    assert {le: turn.value("bucket", le=le) for le in buckets} == buckets
    name = "turnwire_time_to_first_token_seconds_sum"
    assert turn.registry.get_sample_value(name, {"model": "m"}) == 1.0


def test_choices_have_their_own_gaps() -> None:
    turn = Turn()
    for at, tokens in ((1.0, 1), (1.2, 2)):
        turn.arrived(at, tokens)
        turn.arrived(at, tokens, choice=1)
    assert turn.value("count") == 2
    assert turn.value("bucket", le="0.1") == 0
