"""`python -m tests.scaling`: processes that follow a load as pods would, by the manifests of
deploy/kubernetes."""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop
from tokenizers import Tokenizer

from services.cli.up.embedded_nats import find_nats_server
from tests.chaos import table
from tests.chaos.deployment import free_port
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack
from tests.scaling.autoscaler import Target, read_targets, scaled
from tests.scaling.fleet import Fleet, settings
from tests.scaling.run import Phase, Plan, Run, as_rows
from turnwire_tools.script.demo_model import build_demo_model

SLOTS = 256
"""Slots of the worker for which the manifests' threshold is meant."""


@contextlib.asynccontextmanager
async def started(
    directory: Path, divide: float, speed: float
) -> AsyncIterator[tuple[Fleet, Tokenizer]]:
    """A NATS server and a fleet without pods."""
    model = build_demo_model(directory / "model")
    nats = NatsServer(str(find_nats_server()), str(directory))
    nats.port = free_port()
    await asyncio.to_thread(nats.start)
    stack = Stack(nats, model, directory, environment=settings(["DRAIN"]))
    options: dict[str, dict[str, Any]] = {
        "frontend": {"response_store": "shared"},
        "preprocessor": {},
        "parser": {},
        "worker": {"slots": max(1, round(SLOTS / divide)), "queue_limit": 1024},
    }
    try:
        async with Fleet(stack, speed, options) as fleet:
            yield fleet, Tokenizer.from_file(str(model / "tokenizer.json"))
    finally:
        stack.stop()
        nats.kill()


async def measure(plan: Plan, divide: float, directory: Path) -> tuple[list[Phase], list[str]]:
    """The phases, and what else went wrong."""
    async with started(directory, divide, plan.speed) as (fleet, tokenizer):
        run = Run(plan, fleet, tokenizer)
        await run.run(
            lambda phase: print(
                as_rows([phase])[0], *phase.notes[:3], *phase.decisions, sep="\n  ", flush=True
            )
        )
        return run.phases, fleet.wrong


def scaled_targets(divide: float, speed: float, most: int) -> dict[str, Target]:
    """The manifests' autoscalers on a small machine."""
    return {stage: scaled(target, divide, speed, most) for stage, target in read_targets().items()}


def markdown(phases: list[Phase]) -> str:
    """The table of the docs."""
    rows = as_rows(phases)
    head = list(rows[0])
    lines = [
        head,
        ["---", *["--:"] * (len(head) - 1)],
        *([str(row[key]) for key in head] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def main() -> int:
    """0: no stream was lost; 1: one was, or a process ended as it should not."""
    parser = argparse.ArgumentParser(prog="python -m tests.scaling", description=__doc__)
    parser.add_argument(
        "--divide", type=float, default=12.0, metavar="N", help="the manifests' thresholds"
    )
    parser.add_argument(
        "--speed", type=float, default=20.0, metavar="N", help="of the manifests' times"
    )
    parser.add_argument("--most", type=int, default=6, metavar="PODS", help="of a stage")
    parser.add_argument("--low", type=int, default=8, metavar="STREAMS")
    parser.add_argument("--peak", type=int, default=96, metavar="STREAMS")
    parser.add_argument(
        "--step-s", type=float, default=4.0, metavar="S", help="between the steps of the load"
    )
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="put the table into this page's measured section"
    )
    asked = parser.parse_args()
    targets = scaled_targets(asked.divide, asked.speed, asked.most)
    plan = Plan(targets, asked.speed, asked.low, asked.peak, asked.step_s)
    with tempfile.TemporaryDirectory(prefix="turnwire-scaling-") as scratch:
        phases, wrong = uvloop.run(measure(plan, asked.divide, Path(scratch)))
    text = markdown(phases)
    print(text, *wrong, sep="\n")
    if asked.page:
        cores = len(os.sched_getaffinity(0))
        when = f"{datetime.now(UTC):%d %b %Y}, {cores} cores, load {os.getloadavg()[0]:.1f}"
        flags = f"--divide {asked.divide:g} --speed {asked.speed:g} --most {asked.most} --low {asked.low} --peak {asked.peak}"
        table.put(asked.page, "scaling", f"{text}\n`python -m tests.scaling {flags}`, {when}")
    return int(bool(wrong) or any(row["lost or wrong"] for row in as_rows(phases)))


if __name__ == "__main__":
    sys.exit(main())
