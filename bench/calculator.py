"""`python -m bench.calculator`: sends the calculator prompt five times, and checks the order of
every answer.

It repeats the experiment with which Dynamo's authors show that two parsers share one stream
("Streaming Tokens and Tools"): instructions to think first, two tools, and a product that the
calculator is to verify. Each answer must be a thought, perhaps a text, and then one call of the
calculator with the product, without the model's markup, and end for the call. A table shows when
each block of an answer began and ended; the first answer is shown event by event.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import groupby
from typing import Any

import aiohttp
from msgspec import Struct, field
from rich.console import Console
from rich.table import Table

from bench.runs import first_model
from bench.stack import StackFailed, own_stack
from schemas.conversation import Conversation, Message, Sampling, Text, Thinking, ToolSpec
from turnwire_tools.clients.answer import APIS, Api, ClientAnswer
from turnwire_tools.clients.apis import CLIENTS
from turnwire_tools.clients.shared import IllFormed, SseParser

REPEATS = 5
SYSTEM = "Think step by step before you act."
PROMPT = "Think carefully about what 15 * 23 equals, then use the calculator to verify."
EXPRESSION = "15*23"
PLAY = "\n[[play calculator delay=7]]"
"""Chooses the output of the script engine, with the pause between two tokens of Dynamo's report."""
MARKUP = re.compile(r"</?(?:think|tool_call|function|parameter)\b|\[\[play")
MAX_TOKENS = 2048


class Round(Struct):
    """One answer."""

    answer: ClientAnswer
    events: list[tuple[float, str]] = field(default_factory=list)
    """Milliseconds since the request, and the event with the type of its block or delta."""
    blocks: list[tuple[float, float]] = field(default_factory=list)
    """Milliseconds at which each block began and was complete."""
    problems: list[str] = field(default_factory=list)


def conversation(model: str, play: str = "") -> Conversation:
    """Returns the prompt of the experiment."""

    def tool(name: str, about: str, argument: str) -> ToolSpec:
        schema = {
            "type": "object",
            "properties": {argument: {"type": "string"}},
            "required": [argument],
        }
        return ToolSpec(name, about, schema)

    return Conversation(
        model,
        [Message("user", [Text(PROMPT + play)])],
        system=[Text(SYSTEM)],
        tools=[
            tool("calculator", "Evaluates an arithmetic expression.", "expression"),
            tool("weather", "Returns the weather in a city.", "city"),
        ],
        thinking=Thinking("adaptive"),
        sampling=Sampling(max_tokens=MAX_TOKENS),
    )


def problems(answer: ClientAnswer) -> list[str]:
    """Returns what is wrong with an answer; nothing for one as the experiment expects it."""
    found = []
    kinds = [kind for kind, _ in answer.story]
    if kinds not in (["reasoning", "call"], ["reasoning", "text", "call"]):
        found.append(f"the blocks are {', '.join(kinds) or 'none'}")
    for block in answer.blocks:
        if block.kind != "call" and (mark := MARKUP.search(block.text)):
            found.append(f"the {block.kind} has the markup {mark[0]}")
        elif block.kind == "call" and not _is_product(block.name, block.arguments):
            found.append(f"the call is {block.name} {block.arguments}")
    if answer.end != "calls":
        found.append(
            f"it ends with {answer.end}" + (f": {answer.problem}" if answer.problem else "")
        )
    return found


def _is_product(name: str, arguments: str) -> bool:
    try:
        return (
            name == "calculator"
            and json.loads(arguments)["expression"].replace(" ", "") == EXPRESSION
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


async def ask(http: aiohttp.ClientSession, api: Api, asked: Conversation) -> Round:
    """Requests one answer as a stream, and reads it as a client of the API does. Raises
    aiohttp.ClientError."""
    client = CLIENTS[api]
    reader = client.reader()
    blocks, round_ = reader.answer.blocks, Round(reader.answer)
    started = time.perf_counter()
    async with http.post(client.path, data=client.request(asked)) as response:
        if response.status != 200:
            round_.problems.append(f"{response.status}: {(await response.text())[:300]}")
            return round_
        parser = SseParser()
        try:
            async for chunk in response.content.iter_any():
                for name, data in parser.feed(chunk):
                    now = (time.perf_counter() - started) * 1000
                    round_.events.append((now, _describe(name, data)))
                    is_open = bool(blocks) and not blocks[-1].complete and reader.answer.end is None
                    reader.event(name, data)
                    if len(blocks) > len(round_.blocks):
                        round_.blocks.append((now, now))
                    elif is_open:
                        round_.blocks[-1] = (round_.blocks[-1][0], now)
            reader.finish()
        except IllFormed as error:
            round_.problems.append(f"ill-formed: {error}")
    round_.problems += problems(reader.answer)
    return round_


def _describe(name: str, data: Any) -> str:
    if not isinstance(data, dict):
        return name or str(data)
    inner = data.get("content_block") or data.get("delta") or data.get("item") or {}
    kind = inner.get("type") if isinstance(inner, dict) else None
    return " ".join(filter(None, (name or data.get("type") or data.get("object"), kind)))


def show(rounds: Sequence[Round], console: Console) -> None:
    """Prints the first answer event by event, and a table of all."""
    for text, same in groupby(rounds[0].events, key=lambda event: event[1]):
        times = [at for at, _ in same]
        count = f"  ({len(times)} in {times[-1] - times[0]:.0f} ms)" if len(times) > 1 else ""
        console.print(f"{times[0]:7.0f} ms  {text}{count}", highlight=False)
    table = Table(title=PROMPT)
    for column in (
        "",
        "blocks, and ms at which each began and ended",
        "end",
        "prompt",
        "output",
        "",
    ):
        table.add_column(column)
    for number, round_ in enumerate(rounds, 1):
        answer = round_.answer
        blocks = (
            f"{block.kind} {start:.0f}-{end:.0f}"
            for block, (start, end) in zip(answer.blocks, round_.blocks, strict=True)
        )
        tokens = (str(count) for count in answer.usage or ("", ""))
        verdict = "; ".join(round_.problems) or "as expected"
        table.add_row(str(number), ", ".join(blocks), str(answer.end), *tokens, verdict)
    console.print(table)


async def run(asked: argparse.Namespace, stack_arguments: Sequence[str]) -> list[Round]:
    """Runs the experiment. Raises StackFailed, ValueError, aiohttp.ClientError."""
    async with AsyncExitStack() as opened:
        url, model, play = asked.url, asked.model, ""
        if url is None:
            own = await opened.enter_async_context(own_stack(stack_arguments))
            url, model = own.url, own.model
            play = PLAY if not any(flag.startswith("--engine") for flag in stack_arguments) else ""
        model = model or await first_model(url, asked.key)
        key = asked.key or "bench"
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        headers |= {"anthropic-version": "2023-06-01", "x-api-key": key}
        timeout = aiohttp.ClientTimeout(total=asked.timeout)
        async with aiohttp.ClientSession(url, headers=headers, timeout=timeout) as http:
            return [
                await ask(http, asked.api, conversation(model, play)) for _ in range(asked.repeats)
            ]


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status: 1 if an answer is not as expected."""
    words = list(sys.argv[1:] if argv is None else argv)
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="python -m bench.calculator",
        description="Sends the calculator prompt five times. Without --url a stack of our own is "
        "started.",
        epilog="Everything after -- goes to `turnwire up`, e.g. -- --engine transformers --model "
        "DIR",
    )
    parser.add_argument("--url", help="base URL of a running server")
    parser.add_argument(
        "--model", help="name of the model; default: the first that the server lists"
    )
    parser.add_argument("--key", help="API key")
    parser.add_argument("--api", choices=APIS, default="messages")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="for one answer")
    asked = parser.parse_args(words[:end])
    try:
        rounds = asyncio.run(run(asked, words[end + 1 :]))
    except (StackFailed, ValueError, OSError, aiohttp.ClientError) as error:
        print(error, file=sys.stderr)
        return 1
    show(rounds, Console())
    return int(any(round_.problems for round_ in rounds))


if __name__ == "__main__":
    sys.exit(main())
