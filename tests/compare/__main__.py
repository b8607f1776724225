"""`python -m tests.compare`: records what a checkout answers, and compares two recordings."""

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path

from tests.compare.differences import Declared, compare, summary
from tests.compare.recording import record

DECLARED = Path(__file__).parent / "declared.toml"


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.compare", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record", help="send requests to a checkout and keep the answers")
    one.add_argument("tree", type=Path, help="the checkout")
    one.add_argument("folder", type=Path, help="where the recording goes, outside of any checkout")
    one.add_argument("--requests", type=int, default=10_000, metavar="N")
    one.add_argument("--bus-sessions", type=int, default=200, metavar="N")
    one.add_argument("--seed", type=int, default=1, metavar="S")
    two = commands.add_parser("diff", help="compare two recordings")
    two.add_argument("base", type=Path)
    two.add_argument("now", type=Path)
    two.add_argument("--declared", type=Path, default=DECLARED, metavar="FILE", help="the intended differences")
    two.add_argument("--show", type=int, default=30, metavar="N", help="at most so many places")
    return parser


def main() -> int:
    """0: recorded, or the same but for what is declared; 1: different; 2: wrong usage."""
    asked = arguments().parse_args()
    started = time.monotonic()
    if asked.command == "record":
        captures = Path(os.environ.get("AGENT_CAPTURES_DIR", "no captures"))
        work = record(asked.tree.resolve(), asked.folder, asked.seed, asked.requests, asked.bus_sessions, captures)
        sent = asyncio.run(work)
        print(f"{sent} requests in {time.monotonic() - started:.0f} s: {asked.folder}")
        return 0
    declared = Declared.load(asked.declared)
    counts, found = compare(asked.base, asked.now, declared)
    print(summary(counts, found, asked.show))
    for number, entry in enumerate(declared.entries):
        if number not in declared.used:
            print(f"declared, but not found: {entry['path']}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
