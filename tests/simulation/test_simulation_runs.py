"""The simulation: the same seed plays the same turns in every interpreter, marks of rare branches
are unique, and mutants apply to the code as it is."""

import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from simulation.mutants.catalog import MUTANTS
from simulation.mutants.plant import ROOT, Mutant
from simulation.reach import marks
from tests.kit.every import for_each

LIMIT_S = 300.0


def run(module: str, *flags: str, hash_seed: int = 0) -> str:
    """What a module prints; in a process of its own, because it replaces the interpreter's
    clocks."""
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    argv = [sys.executable, "-m", module, *flags]
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_same_seeds_have_the_same_traces_in_every_interpreter() -> None:
    """With two jobs, other seeds come before a seed in its interpreter."""
    traces = set()
    for jobs in (1, 2):
        printed = run("simulation", "--turns", "200", "--jobs", str(jobs), hash_seed=jobs)
        traces |= set(re.findall(r"trace ([0-9a-f]{32})", printed))
    assert len(traces) == 1


def test_names_of_rare_branches_are_unique() -> None:
    assert not [name for name, count in Counter(marks()).items() if count > 1]


@for_each(MUTANTS)
def test_mutant_applies_in_one_place_and_compiles(mutant: Mutant) -> None:
    assert mutant.before != mutant.after
    assert mutant.code().co_filename == str(ROOT / mutant.file)


@pytest.mark.slow
def test_mutant_is_found() -> None:
    flags = ("--jobs", "1", "--seeds", "2", "--only", "one frame too few")
    assert "1 of 1 found" in run("simulation.mutants", *flags)
