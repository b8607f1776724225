"""`python -m tests.chaos`: many trials, one table."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from tests.chaos import table
from tests.chaos.plans import SUITES, Trial, planned
from tests.chaos.trials import Result, run_trials


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    add = parser.add_argument
    add("suite", nargs="?", choices=SUITES, default="faults")
    add("--trials", type=int, default=30, metavar="N")
    add("--seed", type=int, default=1, metavar="S", help="the same trials again")
    add("--only", default="*", metavar="PATTERN", help="of ACTION/STAGE/INSTANCES, as 'kill/*/1'")
    add("--outage", type=float, nargs=2, default=(3.0, 60.0), metavar=("LOW", "HIGH"))
    add("--soak-s", type=float, default=1800.0, metavar="S", help="length of the suite `soak`")
    add("--logs", type=Path, metavar="DIR", help="keep the logs of all processes")
    return parser


async def run(trials: Sequence[Trial], logs: Path | None) -> list[Result]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    results = []
    async for result in run_trials(trials, logs):
        results.append(result)
        print(f"{len(results)}/{len(trials)} {result.line}", flush=True)
    return results


def main() -> int:
    """0: every stream was as it should be; 1: not; 130: interrupted."""
    options = arguments().parse_args()
    trials = planned(
        options.suite,
        options.trials,
        options.seed,
        only=options.only,
        outage=tuple(options.outage),
        soak_s=options.soak_s,
    )
    try:
        results = uvloop.run(run(trials, options.logs))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    print(table.markdown(sorted(results, key=lambda result: result.cell)))
    return int(not all(result.good for result in results))


if __name__ == "__main__":
    sys.exit(main())
