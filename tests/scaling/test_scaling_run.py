"""A short run of `python -m tests.scaling`: real processes follow the load by the manifests, and no
stream is lost."""

from pathlib import Path

import pytest

from tests.scaling.__main__ import measure, scaled_targets
from tests.scaling.run import Plan, as_rows

DIVIDE, SPEED = 60.0, 60.0
STAGES = ("frontend", "preprocessor", "parser", "worker")


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_no_stream_is_lost_while_pods_come_and_go(tmp_path: Path) -> None:
    targets = scaled_targets(DIVIDE, SPEED, most=4)
    plan = Plan(targets, SPEED, low=3, peak=24, step_s=1.0, seconds=(2.0, 6.0))
    phases, wrong = await measure(plan, DIVIDE, tmp_path)
    assert wrong == []
    assert [row["lost or wrong"] for row in as_rows(phases)] == [0] * (len(phases) + 1), [
        p.notes for p in phases
    ]
    assert [phase.name for phase in phases if phase.name.startswith("update")] == [
        f"update of {one}" for one in targets
    ]
    assert set(targets) == set(STAGES)
    for stage in ("parser", "worker"):
        assert max(phase.pods[stage][1] for phase in phases) > targets[stage].fewest, (
            f"{stage} followed the load up"
        )
        assert phases[-1].pods[stage][0] == targets[stage].fewest, f"{stage} followed the load down"
