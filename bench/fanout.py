"""`python -m bench.fanout`: measures what holding does for siblings that start in one moment.

Two stacks, with holding and without (`--hold-tokens 0`), take turns, so that other work of the
machine slows both: one new prompt alone, which is the time of a lead; siblings at once that begin
with the same `--tokens` tokens; as many strangers at once that share nothing.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from statistics import median

import msgspec

from bench import report
from bench.client import Client, Target
from bench.prefixes import (
    API,
    PLAY,
    PREFILL_TOKENS_PER_S,
    START_S,
    TIMEOUT_S,
    Turn,
    ask,
    manual,
)
from bench.rows import quantile
from bench.stack import StackFailed, own_stack, split

STACKS = {"held": (), "not held": ("--hold-tokens=0",)}
STRANGER_TOKENS = 4000
TAIL_TOKENS = 100
"""About this many tokens are a sibling's own."""
PAUSE_S = 1.5
"""Time between the measurements, in which heartbeats report that the workers are idle."""
CASES = ((8, 1), (16, 2))
"""Siblings, and workers."""


class Figures(msgspec.Struct, frozen=True):
    """One case on one stack: medians of the rounds."""

    stack: str
    siblings: int
    workers: int
    prompt_tokens: int
    alone_ms: float
    computed: float
    """Prompt tokens of all siblings that were computed, in prompts."""
    p50_ms: float
    p95_ms: float
    """Siblings' time to the first token."""
    strangers_ms: float


class Result(msgspec.Struct, frozen=True):
    """One run."""

    started: str
    label: str
    machine: report.Machine
    figures: list[Figures]


def texts(count: int, *, shared: int, tail: int, seed: str) -> list[tuple[str, str]]:
    """Returns a system prompt and a question for each of `count` requests. `shared`, `tail`:
    tokens, about; `shared` 0: each has a system prompt of its own."""
    found = []
    for number in range(count):
        system = manual(seed, shared) if shared else manual(f"{seed} {number}", STRANGER_TOKENS)
        found.append((system, f"{manual(f'Task {number}', tail)} {PLAY}"))
    return found


async def together(client: Client, model: str, requests: Sequence[tuple[str, str]]) -> list[Turn]:
    """Sends requests at once. Raises RuntimeError."""
    bodies = [
        {
            "model": model,
            # random weights write nothing visible, so that the end of a turn is what is seen
            "max_tokens": 1,
            "stream": True,
            "system": system,
            "messages": [{"role": "user", "content": question}],
        }
        for system, question in requests
    ]
    await asyncio.sleep(PAUSE_S)
    return await asyncio.gather(*(ask(client, body) for body in bodies))


def computed(turns: Sequence[Turn]) -> float:
    """Returns how much of the prompts was computed, in prompts."""
    return sum(one.prompt_tokens - one.cached_tokens for one in turns) / turns[0].prompt_tokens


async def open_stacks(
    opened: AsyncExitStack, workers: int, arguments: Sequence[str]
) -> dict[str, tuple[str, str]]:
    """Starts both stacks, which end with `opened`. Returns for each its address and model. Raises
    StackFailed."""
    sites = {}
    for stack, flags in STACKS.items():
        speed = f"--prefill-tokens-per-s={PREFILL_TOKENS_PER_S}"
        all_flags = (speed, f"--workers={workers}", *flags, *arguments)
        own = await opened.enter_async_context(own_stack(all_flags, start_s=START_S))
        sites[stack] = own.url, own.model
    return sites


class Round(msgspec.Struct, frozen=True):
    """The turns of one stack in one round."""

    alone: list[Turn]
    siblings: list[Turn]
    strangers: list[Turn]


async def measure(
    siblings: int, workers: int, asked: argparse.Namespace, arguments: Sequence[str]
) -> list[Figures]:
    """Measures one case on both stacks. Raises StackFailed, RuntimeError, OSError."""
    async with AsyncExitStack() as opened:
        sites = {}
        for stack, (url, model) in (await open_stacks(opened, workers, arguments)).items():
            sites[stack] = Client(Target.of(url), API, "fresh", timeout_s=TIMEOUT_S), model
        rounds: dict[str, list[Round]] = {stack: [] for stack in sites}
        for number in range(asked.rounds + 1):
            # The first stack of a round is slower.
            for stack in list(sites) if number % 2 else reversed(sites):
                found = await play_round(*sites[stack], siblings, number, asked.tokens)
                if number:  # the first round is for the speed of the workers, and for caches
                    rounds[stack].append(found)
    return [figures(stack, siblings, workers, some) for stack, some in rounds.items()]


async def play_round(client: Client, model: str, siblings: int, number: int, shared: int) -> Round:
    """One prompt, then siblings, then strangers."""
    name = f"{siblings} {number}"
    tail = TAIL_TOKENS
    alone = texts(1, shared=shared, tail=tail, seed=f"One {name}")
    alike = texts(siblings, shared=shared, tail=tail, seed=f"Group {name}")
    apart = texts(siblings, shared=0, tail=tail, seed=f"Stranger {name}")
    return Round(
        await together(client, model, alone),
        await together(client, model, alike),
        await together(client, model, apart),
    )


def figures(stack: str, siblings: int, workers: int, rounds: Sequence[Round]) -> Figures:
    """The medians of the rounds."""
    times = [sorted(turn.ttft_ms for turn in one.siblings) for one in rounds]
    return Figures(
        stack,
        siblings,
        workers,
        rounds[0].siblings[0].prompt_tokens,
        median(one.alone[0].ttft_ms for one in rounds),
        median(computed(one.siblings) for one in rounds),
        median(median(each) for each in times),
        median(quantile(each, 0.95) for each in times),
        median(median(turn.ttft_ms for turn in one.strangers) for one in rounds),
    )


def show(result: Result) -> None:
    """Prints the figures, a line for each stack of a case."""
    for one in result.figures:
        print(
            f"{one.siblings} siblings, {one.workers} workers, {one.stack:8}: {one.computed:.2f} of "
            f"a prompt of {one.prompt_tokens} tokens computed; first token: alone "
            f"{one.alone_ms:.1f} ms, p50 {one.p50_ms:.1f}, p95 {one.p95_ms:.1f} "
            f"({one.p95_ms / one.alone_ms:.3f} of alone), strangers {one.strangers_ms:.1f}"
        )


async def run(asked: argparse.Namespace, arguments: Sequence[str]) -> Result:
    """Measures all cases. Raises as `measure`."""
    found: list[Figures] = []
    for siblings, workers in CASES:
        found += await measure(siblings, workers, asked, arguments)
    return Result(report.now(), "fanout", report.this_machine(), found)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit status."""
    own, stack_arguments = split(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="python -m bench.fanout",
        description="Siblings that start in one moment, with holding and without.",
        epilog="Everything after -- goes to `turnwire up`, e.g. -- --engine transformers --model "
        "DIR",
    )
    add = parser.add_argument
    add("--tokens", type=int, default=30_000, help="that siblings share, about")
    add("--rounds", type=int, default=5)
    asked = parser.parse_args(own)
    try:
        result = asyncio.run(run(asked, stack_arguments))
    except (StackFailed, RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    show(result)
    report.write(result, report.new_path(result.started, "fanout"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
