"""`python -m tests.compare`: records what a checkout answers, and compares two recordings."""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
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
    two = commands.add_parser("diff", help="compare two recordings")
    two.add_argument("base", type=Path)
    two.add_argument("now", type=Path)
    both = commands.add_parser("commit", help="record a commit and this tree, and compare them")
    both.add_argument("base", help="the commit")
    for command in (one, both):
        command.add_argument("--requests", type=int, default=10_000, metavar="N")
        command.add_argument(
            "--bus-sessions", type=int, default=210, metavar="N", help="record their bus messages"
        )
        command.add_argument("--seed", type=int, default=1, metavar="S")
    for command in (two, both):
        command.add_argument(
            "--declared",
            type=Path,
            default=DECLARED,
            metavar="FILE",
            help="the intended differences",
        )
        command.add_argument(
            "--show", type=int, default=30, metavar="N", help="at most so many places"
        )
    return parser


def main() -> int:
    """0: recorded, or the same but for what is declared; 1: different; 2: wrong usage."""
    asked = arguments().parse_args()
    if asked.command == "record":
        _record(asked, asked.tree, asked.folder)
        return 0
    if asked.command == "diff":
        return _diff(asked, asked.base, asked.now)
    with tempfile.TemporaryDirectory(prefix="turnwire-compare-") as name:
        folder = Path(name)
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", folder / "tree", asked.base],
            check=True,
        )
        try:
            _record(asked, folder / "tree", folder / "base")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder / "tree"], check=True)
        _record(asked, Path(), folder / "now")
        return _diff(asked, folder / "base", folder / "now")


def _record(asked: argparse.Namespace, tree: Path, folder: Path) -> None:
    started, captures = time.monotonic(), Path(os.environ.get("AGENT_CAPTURES_DIR", "no captures"))
    work = record(tree.resolve(), folder, asked.seed, asked.requests, asked.bus_sessions, captures)
    print(
        f"{asyncio.run(work)} requests in {time.monotonic() - started:.0f} s: {folder}", flush=True
    )


def _diff(asked: argparse.Namespace, base: Path, now: Path) -> int:
    declared = Declared.load(asked.declared)
    counts, found = compare(base, now, declared)
    print(summary(counts, found, asked.show))
    for number, entry in enumerate(declared.entries):
        if number not in declared.used:
            print(f"declared, but not found: {entry['path']}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
