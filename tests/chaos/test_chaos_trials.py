"""Faults in real processes: a few of the trials that `make chaos` runs by the hundred, with short
outages."""

import pytest

from tests.chaos.plans import Load, planned
from tests.chaos.trials import run_trials

LOAD = Load(streams=24, new=6, seconds=(3.0, 8.0))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("suite", "count", "only"),
    [
        ("faults", 5, "kill/*/1"),
        ("faults", 5, "stop/*/1"),
        ("faults", 5, "kill/*/2"),
        ("servers", 4, "*"),
        ("rolling", 2, ""),
        ("soak", 1, ""),
    ],
)
async def test_streams_survive(suite: str, count: int, only: str) -> None:
    trials = planned(suite, count, 1, only=only, outage=(3.0, 8.0), load=LOAD, soak_s=90.0)
    results = [result async for result in run_trials(trials)]
    assert all(result.good for result in results), "\n".join(result.line for result in results)
