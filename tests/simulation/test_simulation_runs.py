"""The simulation: the same seed plays the same turns in every interpreter, and marks of rare
branches are unique."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from simulation.reach import marks

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 300.0


def played(*flags: str, hash_seed: int = 0) -> str:
    """What `python -m simulation` prints; in a process of its own, because it replaces the
    interpreter's clocks."""
    run = subprocess.run(
        [sys.executable, "-m", "simulation", *flags],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def trace_of(output: str) -> str:
    found = re.search(r"trace ([0-9a-f]{32})", output)
    assert found is not None, output
    return found[1]


@pytest.mark.slow
def test_same_seeds_have_the_same_traces_in_every_interpreter() -> None:
    """With two jobs, other seeds come before a seed in its interpreter."""
    traces = [
        trace_of(played("--turns", "200", "--jobs", str(jobs), hash_seed=jobs)) for jobs in (1, 2)
    ]
    assert traces[0] == traces[1]


def test_names_of_rare_branches_are_unique() -> None:
    assert not [name for name, count in Counter(marks()).items() if count > 1]
