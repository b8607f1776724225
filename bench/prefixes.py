"""`python -m bench.prefixes`: measures what a changing prefix costs.

The experiment with which Dynamo's authors argue for stable prefixes, on any server: a long prompt (`--tokens`), asked
again and again with a new tail, as an agent does from turn to turn.

    header stable      the same billing line in front of every request
    header stripped    a billing line that differs from request to request, as between Claude Code's sessions
    header left in     the same change in a first line which no server knows to be volatile
    thinking kept      behind 500 tokens of reasoning that come back as they were
    thinking mutated   the same, but the first words of that reasoning differ in every request

Dynamo's own figures for 52,000 tokens: 168 ms to the first token with a stable prefix, 912 with a varying header (5.4);
167 and 322 ms with kept and mutated reasoning (1.9).
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from rich.console import Console
from rich.table import Table

from bench import report
from bench.prompts import make_prompt
from bench.runs import first_model
from bench.stack import StackFailed, own_stack

CHARS_PER_TOKEN = 4.5
"""Of the demo model's tokenizer on this text; what a prompt really had is in the results."""
THINKING_TOKENS = 500
PREFILL_TOKENS_PER_S = 60_000
"""The script engine's, used where the stack is our own and no other is given."""
RATIOS = {
    "header left in / stripped": ("header left in", "header stripped"),
    "header stripped / stable": ("header stripped", "header stable"),
    "thinking mutated / kept": ("thinking mutated", "thinking kept"),
}

Body = dict[str, Any]
Variant = Callable[[int], Body]


class Turn(msgspec.Struct, frozen=True):
    """One request's answer."""

    ttft_ms: float
    prompt_tokens: int
    cached_tokens: int


class Figures(msgspec.Struct, frozen=True):
    """What one variant cost, over all requests but the first."""

    variant: str
    first: Turn
    """Of a prompt seen for the first time."""
    ttft_ms: float
    """Median."""
    prompt_tokens: int
    cached_tokens: int
    turns: list[Turn]


class Result(msgspec.Struct, frozen=True):
    """One run."""

    started: str
    label: str
    url: str
    model: str
    machine: report.Machine
    figures: list[Figures]
    ratios: dict[str, float]


def variants(model: str, tokens: int, seed: int) -> Mapping[str, Variant]:
    """The requests of each variant, by number. Variants share no prefix with each other."""
    manual = make_prompt("large", "same", "text n=4 delay=0", seed).system

    def text(name: str, share: float) -> str:
        wanted = int(tokens * share * CHARS_PER_TOKEN)
        return f"{name} {seed}. " + (manual * (wanted // len(manual) + 1))[:wanted]

    def headed(name: str, line: Callable[[int], str]) -> Variant:
        def body(number: int) -> Body:
            system = [{"type": "text", "text": line(number)}, {"type": "text", "text": text(name, 1.0)}]
            return _body(model, system, [_user(f"Go on with step {number}. [[play text n=4 delay=0]]")])

        return body

    def thought(name: str, first: Callable[[int], str]) -> Variant:
        def body(number: int) -> Body:
            thinking = f"{first(number)} " + text("thought", THINKING_TOKENS / tokens)
            messages = [
                _user("Read the manual. [[play text n=4 delay=0]]"),
                _assistant("call1", {"type": "thinking", "thinking": thinking, "signature": ""}),
                _result("call1", text("manual", 0.5)),
                _assistant("call2"),
                _result("call2", f"Step {number} is done. [[play text n=4 delay=0]]"),
            ]
            return _body(model, [{"type": "text", "text": text(name, 0.5)}], messages)

        return body

    def line(number: int) -> str:
        return f"cc_version=2.1.328.{number % 4096:03x}; cc_entrypoint=cli;"

    return {
        "header stable": headed("stable", lambda _: "x-anthropic-billing-header: " + line(0)),
        "header stripped": headed("stripped", lambda number: "x-anthropic-billing-header: " + line(number)),
        "header left in": headed("left in", lambda number: f"[{line(number)}]"),
        "thinking kept": thought("kept", lambda _: "So."),
        "thinking mutated": thought("mutated", lambda number: f"So, {number}."),
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


def _user(said: str) -> Body:
    return {"role": "user", "content": [{"type": "text", "text": said}]}


def _assistant(call: str, *before: Body) -> Body:
    use = {"type": "tool_use", "id": call, "name": "read_file", "input": {"path": call}}
    return {"role": "assistant", "content": [*before, use]}


def _result(call: str, said: str) -> Body:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": said}]}


async def ask(http: aiohttp.ClientSession, body: Body) -> Turn:
    """One turn. Raises RuntimeError where the answer is no good stream."""
    data = json.dumps(body).encode()
    first = 0.0
    usage: dict[str, Any] = {}
    started = time.perf_counter()
    async with http.post("/v1/messages", data=data) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {(await response.text())[:300]}")
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line[6:])
            # Weights that have learnt nothing may end a turn at once, or write nothing that is shown.
            if not first and event["type"] not in ("message_start", "ping"):
                first = time.perf_counter()
            usage |= event.get("usage") or event.get("message", {}).get("usage") or {}
            if event["type"] == "error":
                raise RuntimeError(str(event["error"]))
    if not first:
        raise RuntimeError("the stream held no output")
    cached = usage.get("cache_read_input_tokens") or 0
    return Turn((first - started) * 1000, usage["input_tokens"] + cached, cached)


async def measure(http: aiohttp.ClientSession, name: str, variant: Variant, requests: int) -> Figures:
    """One variant: the first request measures a new prompt, the others are the result."""
    first, *turns = [await ask(http, variant(number)) for number in range(requests + 1)]
    return Figures(
        name,
        first,
        statistics.median(turn.ttft_ms for turn in turns),
        turns[-1].prompt_tokens,
        int(statistics.median(turn.cached_tokens for turn in turns)),
        turns,
    )


async def run(asked: argparse.Namespace, stack_arguments: Sequence[str]) -> Result:
    """The whole experiment. Raises StackFailed, RuntimeError, aiohttp.ClientError."""
    async with AsyncExitStack() as opened:
        url, model = asked.url, asked.model
        if url is None:
            arguments = [f"--prefill-tokens-per-s={PREFILL_TOKENS_PER_S}", *stack_arguments]
            own = await opened.enter_async_context(own_stack(arguments))
            url, model = own.url, own.model
        model = model or await first_model(url, asked.key)
        headers = {"anthropic-version": "2023-06-01", "x-api-key": asked.key or "bench"}
        timeout = aiohttp.ClientTimeout(total=asked.timeout)
        http = await opened.enter_async_context(aiohttp.ClientSession(url, headers=headers, timeout=timeout))
        seed = int(time.time()) % 1_000_000
        figures = [
            await measure(http, name, variant, asked.requests)
            for name, variant in variants(model, asked.tokens, seed).items()
        ]
    by_name = {figure.variant: figure.ttft_ms for figure in figures}
    ratios = {name: round(by_name[over] / by_name[under], 2) for name, (over, under) in RATIOS.items()}
    return Result(report.now(), asked.label, url, model, report.this_machine(), figures, ratios)


def show(result: Result, console: Console) -> None:
    """The table."""
    table = Table(title=f"Time to first token, {result.figures[0].prompt_tokens} tokens")
    for column in ("", "first seen ms", "again ms (median)", "cached", "of"):
        table.add_column(column, justify="left" if not column else "right")
    for figure in result.figures:
        table.add_row(
            figure.variant,
            f"{figure.first.ttft_ms:.1f}",
            f"{figure.ttft_ms:.1f}",
            str(figure.cached_tokens),
            str(figure.prompt_tokens),
        )
    console.print(table)
    for name, ratio in result.ratios.items():
        console.print(f"{name}: {ratio:g}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    end = given.index("--") if "--" in given else len(given)
    own, stack_arguments = given[:end], given[end + 1 :]
    parser = argparse.ArgumentParser(
        prog="python -m bench.prefixes",
        description="What a varying prefix costs. Without --url a stack of our own is started.",
        epilog="Everything behind -- goes to `turnwire up`, e.g. -- --engine transformers --model DIR",
    )
    parser.add_argument("--url", help="base URL of a running server")
    parser.add_argument("--model", help="name of the model; default: the first that the server lists")
    parser.add_argument("--key", help="API key")
    parser.add_argument("--tokens", type=int, default=52_000, help="of the prompt, about")
    parser.add_argument("--requests", type=int, default=7, help="of each variant, besides the first")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="for one request")
    parser.add_argument("--label", default="prefixes", help="for the result's file name")
    parser.add_argument("--out", type=Path, help="result file; default: one in bench/results")
    asked = parser.parse_args(own)
    try:
        result = asyncio.run(run(asked, stack_arguments))
    except (StackFailed, RuntimeError, OSError, aiohttp.ClientError) as error:
        print(error, file=sys.stderr)
        return 1
    show(result, Console())
    path = asked.out or report.RESULTS / f"{result.started.replace(':', '')}-{asked.label}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
