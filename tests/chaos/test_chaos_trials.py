"""Faults in real processes: a few of the trials that `make chaos` runs by the hundred, with short
outages."""

from pathlib import Path

import pytest

from tests.chaos import table
from tests.chaos.lanes import run_lanes
from tests.chaos.plans import Impossible, planned
from tests.chaos.trials import Load

SHORT = (3.0, 8.0)
LOAD = Load(streams=24, new=6, seconds=(3.0, 8.0))
SOAK_S = 90.0


def check(
    suite: str, count: int, tmp_path: Path, *, only: tuple[str, ...] = (), soak_s: float = SOAK_S
) -> None:
    """Runs trials of a suite; every stream must be as expected."""
    try:
        with planned(suite, count, 1, only=only, outage=SHORT, load=LOAD, soak_s=soak_s) as plan:
            results = list(run_lanes(plan.trials, 1, tmp_path, plan.deployment))
    except Impossible as error:
        pytest.skip(str(error))
    bad = [result for result in results if not result["good"]]
    text = "\n".join(
        str(
            [
                one[key]
                for key in (
                    "seed",
                    "faults",
                    "verdicts",
                    "new",
                    "settled",
                    "died",
                    "exceptions",
                    "notes",
                )
            ]
        )
        for one in bad
    )
    assert not bad, f"{table.markdown(results)}\n{text}"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("action", ["kill", "stop"])
def test_streams_survive_a_fault_of_each_stage(action: str, instances: int, tmp_path: Path) -> None:
    check("faults", 5, tmp_path, only=(f"{action}/*/{instances}",))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("suite", "count"),
    [
        ("rolling", 2),
        ("clock", 2),
        ("disk", 1),
        ("memory", 2),
        ("groups", 2),
        ("images", 2),
        ("soak", 1),
    ],
)
def test_streams_survive(suite: str, count: int, tmp_path: Path) -> None:
    check(suite, count, tmp_path)
