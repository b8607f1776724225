"""`python -m tests.chaos`: many trials, one table."""

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.chaos import table
from tests.chaos.lanes import run_lanes
from tests.chaos.plans import SUITES, Impossible, planned
from tests.chaos.trials import Load


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("suite", nargs="?", choices=SUITES, default="faults")
    parser.add_argument("--trials", type=int, default=27, metavar="N")
    parser.add_argument(
        "--parallel", type=int, default=1, metavar="P", help="deployments side by side"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="the same trials again")
    parser.add_argument(
        "--only",
        action="append",
        metavar="PATTERN",
        help="of ACTION/STAGE/INSTANCES, as 'kill/*/1'",
    )
    parser.add_argument(
        "--trial", type=int, action="append", metavar="NUMBER", help="only this one of the trials"
    )
    parser.add_argument(
        "--outage",
        type=float,
        nargs=2,
        default=(3.0, 60.0),
        metavar=("LOW", "HIGH"),
        help="seconds",
    )
    parser.add_argument("--streams", type=int, default=64, metavar="N")
    parser.add_argument(
        "--soak-s", type=float, default=1800.0, metavar="S", help="how long the suite `soak` takes"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="all results as JSON")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="put the table into this page's measured section"
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs of all processes")
    return parser


def main() -> int:
    """0: every stream was as it should be; 1: not; 2: wrong usage, or impossible on this
    machine."""
    asked = arguments().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    load, outage = Load(streams=asked.streams), tuple(asked.outage)
    try:
        with planned(
            asked.suite,
            asked.trials,
            asked.seed,
            only=asked.only or (),
            outage=outage,
            load=load,
            soak_s=asked.soak_s,
        ) as plan:
            trials = [plan.trials[number] for number in asked.trial] if asked.trial else plan.trials
            results = []
            for result in run_lanes(trials, asked.parallel, asked.logs, plan.deployment):
                results.append(result)
                show(console, result, len(results), len(trials))
                if asked.out:
                    asked.out.write_text(
                        json.dumps({"seed": asked.seed, "results": results}, indent=1) + "\n"
                    )
    except Impossible as error:
        print(f"tests.chaos: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    text = table.markdown(sorted(results, key=lambda result: result["cell"]))
    console.print(text)
    if asked.page:
        table.put(asked.page, asked.suite, text)
    return int(not all(result["good"] for result in results))


def show(console: Console, result: dict[str, Any], number: int, of: int) -> None:
    """Prints one line for a trial, and what was wrong."""
    console.print(
        f"{'ok  ' if result['good'] else 'FAIL'} {number}/{of} {result['seed']} lane {result['lane']} "
        f"{result['faults']} × {result['instances']} {result['verdicts']} new {result['new']} "
        f"pause {result['pause_s']:.1f} silence {result['silence_s']:.1f} took {result['took_s']:.0f} s"
    )
    for note in [
        *result["died"],
        *result["exceptions"][:3],
        *filter(None, [result["settled"]]),
        *result["notes"][:6],
    ]:
        console.print(f"       {note}")


if __name__ == "__main__":
    sys.exit(main())
