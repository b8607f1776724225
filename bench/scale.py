"""`python -m bench.scale`: measures how many streams a core carries, by stage, and whether more
processes carry more.

A stage's CPU for one step of all its streams is `step + token * streams`, fitted to measured loads
(including the cost of requests, spread over their tokens). A process on a core of its own then
carries as many streams as fill the time between two steps. To check that with few cores, frontends
and parsers get a fraction of a core each: below the predicted number of streams each token must
have its own event in time, and above it must not. `--write` puts the tables into
`docs/large-deployments.md`.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from bench.cpu import of_stage
from bench.large.__main__ import PAGE, put
from bench.load import loop_factory
from bench.measuring import Site
from bench.model import build_bench_model
from bench.quota import limited
from bench.rows import Row
from bench.scenarios import hold
from bench.sides import Turnwire
from bench.stack import STATE, StackFailed

STEP_MS = 10.0
RAMP_S = 2.0
LOADS = (16, 64, 128, 256)
"""Streams to which the cost of a step is fitted."""
SHAPES = ((1, 1), (1, 2), (2, 1), (2, 2), (4, 4))
"""Frontends and parsers."""
BELOW, ABOVE = 0.75, 1.5
"""Loads, as shares of the predicted streams."""
STAGES = ("frontend", "parser", "worker", "nats")
LIMITED = ("frontend", "parser")


class StepCost(Struct, frozen=True):
    """The CPU that one process of a stage takes for a step of its streams, µs."""

    step: float
    """For waking up, independent of the number of streams."""
    token: float
    """For each stream."""

    def streams(self, share: float = 1.0) -> float:
        """How many streams a share of a core carries."""
        return max(0.0, (share * STEP_MS * 1000 - self.step) / self.token)


class Check(Struct, frozen=True):
    """One load on a stack in which each frontend and parser has a share of a core."""

    frontends: int
    parsers: int
    predicted: float
    streams: int
    tokens_per_s: float
    events_per_token: float
    gap_p99_ms: float


def fit(points: Mapping[int, float]) -> StepCost:
    """The line through (streams, µs of a step), by least squares."""
    mean_x, mean_y = sum(points) / len(points), sum(points.values()) / len(points)
    spread = sum((x - mean_x) ** 2 for x in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points.items()) / spread
    return StepCost(mean_y - slope * mean_x, slope)


def step_costs(rows: Sequence[Row]) -> dict[str, StepCost]:
    """The cost of each stage, of loads with one process of each."""
    by_stage: dict[str, dict[int, float]] = {stage: {} for stage in STAGES}
    for row in rows:
        for name, us in row.cpu_us_per_token.items():
            if of_stage(name) in by_stage:
                by_stage[of_stage(name)][row.case.clients] = us * row.case.clients
    return {stage: fit(points) for stage, points in by_stage.items()}


def predicted(costs: Mapping[str, StepCost], frontends: int, parsers: int, share: float) -> float:
    """How many streams these processes carry, each with a share of a core: what the first stage at
    its limit does."""
    return min(
        frontends * costs["frontend"].streams(share), parsers * costs["parser"].streams(share)
    )


async def load(site: Site, streams: int, tokens: int) -> Row:
    """Paced streams, all open at once. They begin one after the other, so that the requests do not
    queue."""
    rows = hold(
        site, clients=streams, tokens=tokens, delay_ms=STEP_MS, mode="keepalive", ramp_s=RAMP_S
    )
    return await anext(rows)


async def measure(model: Path, loads: Sequence[int], tokens: int) -> list[Row]:
    """The loads on a stack with one process of each stage."""
    async with Turnwire(model).open() as up:
        await load(up.site, loads[0], tokens)
        return [await load(up.site, streams, tokens) for streams in loads]


async def check(
    model: Path, shape: tuple[int, int], costs: Mapping[str, StepCost], share: float, tokens: int
) -> list[Check]:
    """A load below and one above the predicted streams."""
    frontends, parsers = shape
    most = predicted(costs, frontends, parsers, share)
    found = []
    async with Turnwire(model, (f"--frontends={frontends}", f"--parsers={parsers}")).open() as up:
        await load(up.site, 8, 32)
        bound = {name: pid for name, pid in up.site.pids.items() if of_stage(name) in LIMITED}
        for part in (BELOW, ABOVE):
            streams = max(1, round(part * most))
            with limited(bound, share):
                row = await load(replace(up.site, timeout_s=300.0), streams, tokens)
            if row.failed or row.gap_ms is None:
                raise StackFailed(f"{row.failed} of {row.requests} streams failed: {row.errors}")
            found.append(
                Check(
                    frontends,
                    parsers,
                    most,
                    streams,
                    row.tokens_per_s,
                    row.events / row.tokens,
                    round(row.gap_ms.p99, 1),
                )
            )
    return found


def costs_table(costs: Mapping[str, StepCost], rows: Sequence[Row]) -> str:
    """What a step costs, and what a core carries."""
    streams = [row.case.clients for row in rows]
    lines = [
        "| stage | µs of a step | and of each token | "
        + " | ".join(f"µs a token, {count} streams" for count in streams)
        + " | streams of a core |",
        "|---|" + "--:|" * (3 + len(streams)),
    ]
    for stage, cost in costs.items():
        measured = [
            sum(us for name, us in row.cpu_us_per_token.items() if of_stage(name) == stage)
            for row in rows
        ]
        figures = " | ".join(f"{us:.1f}" for us in measured)
        lines.append(
            f"| {stage} | {cost.step:.0f} | {cost.token:.1f} | {figures} | {cost.streams():,.0f} |"
        )
    return "\n".join(lines)


def checks_table(checks: Sequence[Check], share: float) -> str:
    """Whether the prediction held."""
    lines = [
        f"| frontends, parsers, {100 * share:g} % of a core each | predicted streams | streams | "
        "tokens/s "
        "| events per token | gap p99, ms |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for one in checks:
        lines.append(
            f"| {one.frontends}, {one.parsers} | {one.predicted:.0f} | {one.streams} | "
            f"{one.tokens_per_s:,.0f} "
            f"| {one.events_per_token:.2f} | {one.gap_p99_ms:g} |"
        )
    return "\n".join(lines)


async def run(
    share: float, tokens: int, loads: Sequence[int], shapes: Sequence[tuple[int, int]]
) -> str:
    """Measures everything; returns the tables. Raises StackFailed, OSError."""
    model = build_bench_model(STATE / "model")
    rows = await measure(model, loads, tokens)
    costs = step_costs(rows)
    checks = [one for shape in shapes for one in await check(model, shape, costs, share, tokens)]
    return f"{costs_table(costs, rows)}\n\n{checks_table(checks, share)}"


def main() -> int:
    """Prints the tables; 1 where a stack failed or no quota could be set."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument(
        "--share",
        type=float,
        default=0.12,
        help="of a core, for each frontend and parser; 0.1 at least",
    )
    parser.add_argument("--tokens", type=int, default=1000, help="of a stream")
    parser.add_argument("--quick", action="store_true", help="few and short loads: does it work?")
    parser.add_argument("--write", action="store_true", help="into the page")
    asked = parser.parse_args()
    loads, shapes, tokens = (
        (LOADS, SHAPES, asked.tokens) if not asked.quick else ((8, 32), ((1, 2),), 64)
    )
    where = f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} at the start"
    when = f"{datetime.now(UTC):%d %b %Y}, {where}."
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            text = f"{runner.run(run(asked.share, tokens, loads, shapes))}\n\n{when}"
    except (StackFailed, OSError) as error:
        print(f"bench.scale: {error}", file=sys.stderr)
        return 1
    print(text)
    if asked.write:
        put(PAGE, "scale", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
