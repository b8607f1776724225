"""`python -m simulation`: plays turns under faults, and judges everything. Status 1: something
failed.

python -m simulation --turns 2000          a minute's worth
python -m simulation --turns 1000000       a night's
python -m simulation --seed 17 --trace     one seed, with its whole trace by process
"""

import argparse
import hashlib
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import Executor
from pathlib import Path

from simulation.pool import build_model, open_pool, play, reduce, results
from simulation.reach import marks
from simulation.result import Result

SHOWN = 6
PROGRESS_S = 30.0
INTERRUPTED = 130


def arguments() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument(
        "--turns", type=_positive, default=2000, metavar="N", help="turns to play, in all"
    )
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed")
    parser.add_argument(
        "--jobs", type=_positive, default=os.cpu_count() or 1, metavar="N", help="processes"
    )
    parser.add_argument("--seed", type=int, metavar="SEED", help="play only this one")
    parser.add_argument("--trace", action="store_true", help="print the whole trace of --seed")
    parser.add_argument(
        "--reach", action="store_true", help="fail if a rare branch was not reached"
    )
    parser.add_argument(
        "--no-reduce", action="store_true", help="do not find the faults that a failure needs"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def main() -> int:
    """The exit status: 1 if anything failed, 130 if it was interrupted."""
    parser = arguments()
    asked = parser.parse_args()
    if asked.trace and asked.seed is None:
        parser.error("--trace needs --seed")
    for number in (signal.SIGINT, signal.SIGTERM):  # shells let background jobs ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory() as directory:
            model = build_model(Path(directory))
            if asked.seed is not None:
                return _one(asked.seed, model, trace=asked.trace, reduced=not asked.no_reduce)
            return _many(asked, model)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED


def _one(seed: int, model: Path, *, trace: bool, reduced: bool) -> int:
    with open_pool(1) as pool:
        result = pool.submit(play, seed, model, trace).result()
        if trace:
            for at, name, text in result.trace:
                print(f"{at:11.6f} {name:14} {text}")
        _show(result)
        if reduced and result.failures:
            _show_reduced(pool, seed, model)
    print(f"seed {seed}: {result.turns} turns, {result.requests} requests, trace {result.digest}")
    return int(bool(result.failures))


def _many(asked: argparse.Namespace, model: Path) -> int:
    turns, first, jobs, reduced, complete = (
        asked.turns,
        asked.first,
        asked.jobs,
        not asked.no_reduce,
        asked.reach,
    )
    started, played, requests, failed, interrupted = time.monotonic(), 0, 0, list[int](), False
    outcomes, reached, digests = Counter[str](), Counter[str](), dict[int, str]()
    shown = started
    with open_pool(jobs) as pool:
        try:
            for result in results(pool, first, turns, jobs, model):
                played += result.turns
                requests += result.requests
                outcomes.update(result.outcomes)
                reached.update(result.reached)
                digests[result.seed] = result.digest
                if time.monotonic() >= shown + PROGRESS_S:
                    shown = time.monotonic()
                    speed = f"{played / (shown - started):.1f} turns/s"
                    print(
                        f"{len(digests)} seeds, {played} turns, {speed}, {len(failed)} failed",
                        file=sys.stderr,
                    )
                if result.failures:
                    failed.append(result.seed)
                    _show(result)
                    if reduced:
                        _show_reduced(pool, result.seed, model)
        except KeyboardInterrupt:
            interrupted = True
            pool.shutdown(wait=False, cancel_futures=True)
            print("interrupted; what was played until then:")
    seconds = time.monotonic() - started
    whole = hashlib.sha256("".join(digests[seed] for seed in sorted(digests)).encode()).hexdigest()[
        :32
    ]
    print(f"requests by end: {dict(outcomes.most_common())}")
    rare = {*marks()}
    if missed := sorted(rare - reached.keys()):
        print(
            "\n    ".join(
                (f"rare branches that were not reached ({len(missed)} of {len(rare)}):", *missed)
            )
        )
    print(
        f"{len(digests)} seeds from {first}, {played} turns, {requests} requests in {seconds:.0f} "
        "s "
        f"({played / seconds:.1f} turns/s), {len(failed)} failed {failed[:20] or ''} trace {whole}"
    )
    return INTERRUPTED if interrupted else int(bool(failed or (complete and missed)))


def _show(result: Result) -> None:
    if not result.failures:
        return
    print(f"seed {result.seed} failed; its faults:")
    for fault in result.faults:
        print(f"    {fault}")
    for failure in result.failures[:SHOWN]:
        print(f"  ! {failure[:600]}")
    print(f"  to see all: python -m simulation --seed {result.seed} --trace", flush=True)


def _show_reduced(pool: Executor, seed: int, model: Path) -> None:
    print(f"  seed {seed} still fails with:")
    for fault in pool.submit(reduce, seed, model).result():
        print(f"    {fault}")


if __name__ == "__main__":
    sys.exit(main())
