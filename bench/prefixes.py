"""`python -m bench.prefixes`: measures what a changing prefix costs (README.md).

A long prompt is sent again and again with a new tail, as an agent does from turn to turn: after
Claude Code's billing line, which stays or varies, and before reasoning that comes back as it was or
with other first words.

On stacks of our own, or with `--url` on another server of the Messages API.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from bench import report
from bench.apis import APIS
from bench.client import Client, Target
from bench.prompts import make_prompt
from bench.stack import StackFailed, own_stack, split

CHARS_PER_TOKEN = 4.5
"""For the demo model's tokenizer on this text. The results have the exact number of tokens."""
THINKING_TOKENS = 500
PLAY = "[[play text n=4 delay=0]]"
PREFILL_TOKENS_PER_S = 60_000
"""Speed of the script engine, the default engine of a stack of our own."""
API = APIS["messages"]
BEFORE_OUTPUT = (b"event: message_start", b"event: ping")
TIMEOUT_S = 900.0
"""For one request."""
START_S = 600.0
"""An engine with a large model starts slowly."""
RATIOS = {
    "header varying / stable": ("header varying", "header stable"),
    "thinking mutated / kept": ("thinking mutated", "thinking kept"),
}
STACKS: Mapping[str, Sequence[str]] = {
    "stripped": (),
    "left in": ("--no-strip-anthropic-preamble",),
}
"""Stacks of our own: what happens to the billing line, and the flags for it."""

Body = dict[str, Any]
Variant = Callable[[int], Body]


class Turn(msgspec.Struct, frozen=True):
    """One request's answer."""

    ttft_ms: float
    prompt_tokens: int
    cached_tokens: int


class Figures(msgspec.Struct, frozen=True):
    """Figures of one variant, over all requests but the first."""

    stack: str
    """What happens to the billing line (`STACKS`), or `other` for another server."""
    variant: str
    first: Turn
    """The turn with the new prompt."""
    ttft_ms: float
    """Median."""
    prompt_tokens: int
    cached_tokens: int
    turns: list[Turn]


class Result(msgspec.Struct, frozen=True):
    """One run."""

    started: str
    model: str
    machine: report.Machine
    figures: list[Figures]
    ratios: dict[str, float]


def manual(name: str, tokens: int) -> str:
    """Returns a manual of roughly this many tokens that begins with a name."""
    text = make_prompt("large", "same", "").system
    wanted = int(tokens * CHARS_PER_TOKEN)
    return f"{name}. " + (text * (wanted // len(text) + 1))[:wanted]


def variants(model: str, tokens: int, seed: int) -> Mapping[str, Variant]:
    """Returns the requests of each variant, by number. Variants share no prefix."""

    def headed(name: str, line: Callable[[int], str]) -> Variant:
        def body(number: int) -> Body:
            header = f"x-anthropic-billing-header: {line(number)}"
            system = [
                {"type": "text", "text": header},
                {"type": "text", "text": manual(f"{name} {seed}", tokens)},
            ]
            said = f"Go on with step {number}. {PLAY}"
            return _body(model, system, [{"role": "user", "content": said}])

        return body

    def thought(name: str, first: Callable[[int], str]) -> Variant:
        def body(number: int) -> Body:
            thinking = f"{first(number)} {manual('thought', THINKING_TOKENS)}"
            answer: list[Body] = [
                {"type": "thinking", "thinking": thinking, "signature": ""},
                {"type": "tool_use", "id": "call1", "name": "read_file", "input": {"path": "a"}},
            ]
            said = f"Step {number} is done. {PLAY}"
            result = {"type": "tool_result", "tool_use_id": "call1", "content": said}
            messages: list[Body] = [
                {"role": "user", "content": f"Read the manual. {PLAY}"},
                {"role": "assistant", "content": answer},
                {"role": "user", "content": [result]},
            ]
            return _body(
                model, [{"type": "text", "text": manual(f"{name} {seed}", tokens)}], messages
            )

        return body

    def line(number: int) -> str:
        return f"cc_version=2.1.328.{number % 4096:03x}; cc_entrypoint=cli;"

    return {
        "header stable": headed("stable", lambda _: line(0)),
        "header varying": headed("varying", line),
        "thinking kept": thought("kept", lambda _: "Step."),
        "thinking mutated": thought("mutated", lambda number: f"{number} steps."),
    }


def _body(model: str, system: list[Body], messages: list[Body]) -> Body:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    return {
        "model": model,
        "max_tokens": 32,
        "stream": True,
        "system": system,
        "messages": messages,
        "tools": [{"name": "read_file", "description": "Reads a file.", "input_schema": schema}],
        "thinking": {"type": "adaptive"},
    }


async def ask(client: Client, body: Body) -> Turn:
    """Requests one turn. Raises RuntimeError if the answer is not a complete stream."""
    exchange = await client.exchange(json.dumps(body).encode(), keep=True)
    tokens = exchange.tokens(API)
    if not exchange.finished or tokens is None:
        raise RuntimeError(exchange.error or "the stream has no usage")
    # Random weights may end a turn at once, or write nothing visible.
    first = next(at for at, event in exchange.each() if not event.startswith(BEFORE_OUTPUT))
    return Turn((first - exchange.due) / 1e6, tokens.prompt, tokens.cached)


async def measure(url: str, model: str, *, tokens: int, requests: int, stack: str) -> list[Figures]:
    """Measures all variants in turn, so that other work of the machine slows all of them. The first
    request of each has a new prompt, the others are the result. Raises RuntimeError,
    aiohttp.ClientError."""
    bodies = variants(model, tokens, int(time.time()) % 1_000_000)
    turns: dict[str, list[Turn]] = {name: [] for name in bodies}
    client = Client(Target.of(url), API, timeout_s=TIMEOUT_S)
    for number in range(requests + 1):
        for name, body in bodies.items():
            turns[name].append(await ask(client, body(number)))
    client.close()
    return [
        Figures(
            stack,
            name,
            first,
            statistics.median(turn.ttft_ms for turn in again),
            again[-1].prompt_tokens,
            int(statistics.median(turn.cached_tokens for turn in again)),
            again,
        )
        for name, (first, *again) in turns.items()
    ]


def ratios(figures: Sequence[Figures]) -> dict[str, float]:
    """Returns the ratios of times to the first token, for each stack."""
    found = {}
    for stack in dict.fromkeys(figure.stack for figure in figures):
        by_name = {figure.variant: figure.ttft_ms for figure in figures if figure.stack == stack}
        for name, (over, under) in RATIOS.items():
            found[f"{name}, {stack}"] = round(by_name[over] / by_name[under], 2)
    return found


async def run(asked: argparse.Namespace, arguments: Sequence[str]) -> Result:
    """The whole experiment. Raises StackFailed, RuntimeError."""
    sizes = {"tokens": asked.tokens, "requests": asked.requests}
    figures, model, stacks = [], asked.model, STACKS
    if asked.url:
        figures, stacks = await measure(asked.url, model, stack="other", **sizes), {}
    for stack, flags in stacks.items():
        speed = f"--prefill-tokens-per-s={PREFILL_TOKENS_PER_S}"
        async with own_stack([speed, *flags, *arguments], start_s=START_S) as own:
            model = own.model
            figures += await measure(own.url, model, stack=stack, **sizes)
    machine = report.this_machine()
    return Result(report.now(), model, machine, figures, ratios(figures))


def show(result: Result) -> None:
    """Prints the figures, a line for each variant."""
    for one in result.figures:
        print(
            f"{one.stack:10} {one.variant:18} first seen {one.first.ttft_ms:8.1f} ms, "
            f"again {one.ttft_ms:8.1f} ms; {one.cached_tokens} of {one.prompt_tokens} cached"
        )
    for name, ratio in result.ratios.items():
        print(f"{name}: {ratio:g}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    own, stack_arguments = split(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="python -m bench.prefixes",
        description="What a varying prefix costs.",
        epilog="Everything after -- goes to `turnwire up`, e.g. -- --engine transformers --model "
        "DIR",
    )
    parser.add_argument("--tokens", type=int, default=52_000, help="of the prompt, about")
    parser.add_argument("--requests", type=int, default=7, help="of each variant, after the first")
    parser.add_argument("--url", help="of another server of Messages that runs, e.g. `vllm serve`")
    parser.add_argument("--model", help="the name of its model")
    asked = parser.parse_args(own)
    try:
        result = asyncio.run(run(asked, stack_arguments))
    except (StackFailed, RuntimeError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    show(result)
    report.write(result, report.new_path(result.started, "prefixes"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
