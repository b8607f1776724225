"""`python -m bench.ledger`: measures for each published chat template which share of tokens an
engine computes again, because the next prompt does not begin with them, with the ledger and
without.

Templates come from the `trl` package (pip install --no-deps trl). Sessions are random, the same for
every template.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.ledger.clients import CLIENTS
from bench.ledger.models import build
from bench.ledger.published import published
from bench.ledger.walk import Walk, common


class Chance:
    """`Choices` from a seeded generator."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, count: int) -> int:
        return self._random.randrange(count)

    def of(self, options: Any) -> Any:
        return options[self.below(len(options))]


def measure(template: str, directory: Path, sessions: int) -> Counter[str]:
    """Returns sums over sessions of all clients: turns, kept turns, cached tokens, tokens computed
    again."""
    setup, sums = build(template, directory), Counter[str]()
    for seed in range(sessions):
        client = list(CLIENTS.values())[seed % len(CLIENTS)]
        for step in Walk(setup, Chance(seed), [client], turns=8):
            known = step.before[-1].ids
            sums["turns"] += 1
            sums["kept"] += step.kept
            sums["known"] += len(known)
            sums["again"] += len(known) - common(known, step.prompt.ids)
            sums["again without"] += len(known) - common(known, step.plain)
    return sums


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.ledger", description=__doc__)
    parser.add_argument("templates", nargs="*", help="names of templates; default: all")
    parser.add_argument("--sessions", type=int, default=8, help="sessions per template")
    options = parser.parse_args(argv)
    known = published()
    if not known:
        print("trl is not installed: pip install --no-deps trl==1.16.0", file=sys.stderr)
        return 1
    print(f"{'template':<24} {'turns':>6} {'kept':>6} {'again, ledger':>14} {'again, without':>15}")
    for name in options.templates or known:
        with tempfile.TemporaryDirectory() as directory:
            sums = measure(known[name].read_text(), Path(directory), options.sessions)
        shares = (sums[key] / sums["known"] for key in ("again", "again without"))
        print(
            f"{name:<24} {sums['turns']:>6} {sums['kept']:>6} {next(shares):>14.1%} "
            f"{next(shares):>15.1%}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
