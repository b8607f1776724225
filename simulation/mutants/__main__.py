"""`python -m simulation.mutants`: plants faults in the recovery code and plays seeds until each is
found. Status 1: one was missed.

python -m simulation.mutants                       all of them
python -m simulation.mutants --only "ack one too low"
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from simulation.mutants.catalog import MUTANTS
from simulation.mutants.hunt import Baseline, Find, hunt
from simulation.pool import build_model

SEEDS = 60
CHOICE = 10
"""Seeds among which one is chosen."""


def arguments() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m simulation.mutants", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="mutants with this in their names",
    )
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, metavar="N", help="the most seeds for each mutant"
    )
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed")
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="mutants at the same time",
    )
    return parser


def main() -> int:
    """The exit status: 1 if a mutant was missed."""
    asked = arguments().parse_args()
    mutants = [
        mutant
        for mutant in MUTANTS
        if not asked.only or any(part in mutant.name for part in asked.only)
    ]
    with tempfile.TemporaryDirectory() as directory:
        model = build_model(Path(directory))
        baseline = Baseline(model)
        seeds = baseline.choose(range(asked.first, asked.first + CHOICE * asked.seeds), asked.seeds)
        with ThreadPoolExecutor(asked.jobs) as threads:
            hunts = [threads.submit(hunt, mutant, seeds, model, baseline) for mutant in mutants]
            for done in as_completed(hunts):
                print(_row(done.result(), seeds), file=sys.stderr, flush=True)
        baseline.close()
    finds = [done.result() for done in hunts]
    count = sum(find.seed is not None for find in finds)
    print(
        "| mutant | seeds | turns | found by |",
        "|---|--:|--:|---|",
        *(_row(find, seeds) for find in finds),
        sep="\n",
    )
    print(f"\n{count} of {len(finds)} found")
    return int(count < len(finds))


def _row(find: Find, seeds: Sequence[int]) -> str:
    name = f"{find.mutant.name} (`{Path(find.mutant.file).name}`)"
    if find.seed is None:
        return (
            f"| {name} | – | {find.turns} | **missed**; {find.touched} of {len(seeds)} traces "
            "differ |"
        )
    reason = find.failures[0].replace("|", "/").replace("\n", " ")
    return f"| {name} | {seeds.index(find.seed) + 1} | {find.turns} | {reason[:140]} |"


if __name__ == "__main__":
    sys.exit(main())
