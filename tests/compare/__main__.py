"""`python -m tests.compare BASE`: sends the same requests to a commit and to this tree, and compares
the answers."""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.compare.differences import compare, summary
from tests.compare.recording import Exchange, record
from tests.compare.sessions import drawn


def main() -> int:
    """0: the same; 1: different; 2: wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m tests.compare", description=__doc__)
    parser.add_argument("base", help="the commit")
    parser.add_argument("--requests", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--show", type=int, default=30, metavar="N", help="most places shown")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="turnwire-compare-") as name:
        tree = Path(name, "tree")
        git = ("git", "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", tree, asked.base], check=True)
        try:
            base = _recorded(asked, tree)
        finally:
            subprocess.run([*git, "remove", "--force", tree], check=True)
    found = compare(base, _recorded(asked, Path()))
    print(summary(found, asked.show))
    return 1 if found else 0


def _recorded(asked: argparse.Namespace, tree: Path) -> list[Exchange]:
    started = time.monotonic()
    found = asyncio.run(record(tree.resolve(), list(drawn(asked.seed, asked.requests))))
    print(f"{len(found)} requests to {tree} in {time.monotonic() - started:.0f} s", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
