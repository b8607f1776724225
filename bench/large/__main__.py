"""`python -m bench.large`: simulates 100,000 streams on one bus, or spread over several, and writes
the tables into `docs/large-deployments.md`."""

import argparse
import asyncio
import multiprocessing
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from bench.large.report import routing_table, server_table, simulate, stages_table
from bench.large.routing import BLOCK
from bench.report import RESULTS, load

PAGE = Path(__file__).parents[2] / "docs" / "large-deployments.md"
BEGIN, END = "<!-- bench.large: {part} -->", "<!-- /bench.large: {part} -->"
MANY = 50_000
"""Streams of one bus above which a round takes many minutes."""
PARTS = ("routing", "server", "stages")


def put(page: Path, part: str, text: str) -> None:
    """Replaces a measured part of a page. Raises ValueError if it is not there."""
    first, last = BEGIN.format(part=part), END.format(part=part)
    before, begin, rest = page.read_text(encoding="utf-8").partition(first)
    _, end, behind = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{page} has no {first} … {last}")
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{behind}", encoding="utf-8")


def main() -> int:
    """Prints the tables; with `--write`, writes them into the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.large", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], help="default: routing and server"
    )
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument(
        "--buses", type=lambda text: [int(one) for one in text.split(",")], default=[1, 4, 16]
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="turns of each session; one where a bus has 100,000"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--result", type=Path, default=RESULTS / "large.json", help="of bench.load, for `stages`"
    )
    parser.add_argument("--tokens-per-s", type=float, default=50.0, help="of a stream")
    parser.add_argument("--turn-s", type=float, default=20.0, help="between two turns of a stream")
    parser.add_argument("--write", action="store_true", help="into the page")
    asked = parser.parse_args()
    parts = asked.parts or ["routing", "server"]
    where = f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} at the start"
    when = f"{datetime.now(UTC):%d %b %Y}, {where}."
    for part in parts:
        if part == "routing":
            cases = [
                (
                    asked.streams,
                    buses,
                    asked.rounds if asked.streams <= MANY * buses else 1,
                    asked.seed,
                )
                for buses in asked.buses
            ]
            # A process for each, so that they share no memory.
            with multiprocessing.get_context("spawn").Pool(len(cases), maxtasksperchild=1) as pool:
                text = routing_table(list(pool.imap(simulate, cases, chunksize=1)))
            text += f"\n{asked.streams:,} streams, blocks of {BLOCK} tokens. {when}"
        elif part == "server":
            text = f"{asyncio.run(server_table())}\n{when}"
        else:
            text = f"{stages_table(load(asked.result), asked.tokens_per_s, asked.turn_s)}\n{when}"
        print(f"{text}\n", flush=True)
        if asked.write:
            put(PAGE, part, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
