"""The mutants of `simulation.mutants` apply to the code as it is, and are what an interpreter
imports."""

import subprocess
import sys

import pytest

from simulation.mutants.catalog import MUTANTS
from simulation.mutants.plant import ROOT, Mutant

IMPORT = """
from simulation.mutants.catalog import MUTANTS
from simulation.mutants.plant import plant

plant(next(mutant for mutant in MUTANTS if mutant.name == "acknowledges one frame too few"))
from services.runtime.streams.links import ReceiveLink

link = ReceiveLink(window=100)
link.arrived(1, 10)
print(link.take_credit())
"""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_applies_in_one_place_and_compiles(mutant: Mutant) -> None:
    assert mutant.before != mutant.after
    assert mutant.code().co_filename == str(ROOT / mutant.file)


def test_planted_module_is_imported_in_place_of_the_real_one() -> None:
    command = [sys.executable, "-c", IMPORT]
    assert (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        == "0\n"
    )


@pytest.mark.slow
def test_mutant_is_found() -> None:
    command = [
        sys.executable,
        "-m",
        "simulation.mutants",
        "--jobs",
        "1",
        "--seeds",
        "2",
        "--only",
        "one frame too few",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "1 of 1 found" in done.stdout
