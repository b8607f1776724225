"""`python -m bench.threads`: measures the CPU of a turn in a message thread, beside one that sends
the whole history (README.md).

Two sessions of the Messages API take turns, so that other work of the machine slows both. They have
the same texts; one sends only its new message (`thread`), the other all of them.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

import aiohttp
import msgspec

from bench import report
from bench.cpu import Meter
from bench.prefixes import PLAY, manual
from bench.stack import Running, StackFailed, own_stack, split

SETTLE_S = 0.02
"""Time for what processes do after the last byte of an answer."""
STAGES = ("frontend", "preprocessor", "parser", "nats")
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}

Body = dict[str, Any]


class Figures(msgspec.Struct, frozen=True):
    """The medians of one session's turns."""

    session: str
    turns: int
    request_bytes: int
    cpu_ms: dict[str, float]
    """CPU of each stage."""


class Result(msgspec.Struct, frozen=True):
    """One run."""

    started: str
    machine: report.Machine
    history: int
    """Turns before the first that was measured."""
    figures: list[Figures]


class Session:
    """A session with its history."""

    def __init__(self, name: str, head: Body, *, threaded: bool) -> None:
        self.name = name
        self.bytes: list[int] = []
        self.cpu_ms: dict[str, list[float]] = {stage: [] for stage in STAGES}
        self._head = head
        self._threaded = threaded
        self._history: list[Body] = []
        self._previous: str | None = None

    async def ask(self, http: aiohttp.ClientSession, text: str) -> int:
        """Sends the next turn; returns the bytes of the request. Raises aiohttp.ClientError."""
        self._history.append({"role": "user", "content": text})
        data = json.dumps(self._body()).encode()
        async with http.post("/v1/messages", data=data) as response:
            answer = await response.json()
        self._history.append({"role": "assistant", "content": answer["content"]})
        self._previous = answer["id"]
        return len(data)

    def _body(self) -> Body:
        """The next request."""
        if not self._threaded:
            return self._head | {"messages": self._history}
        if self._previous is None:
            return self._head | {"messages": self._history, "thread": {"type": "create"}}
        thread = {"type": "continue", "previous_message_id": self._previous}
        last = self._history[-1:]
        return {"model": self._head["model"], "max_tokens": 64, "messages": last, "thread": thread}

    def figures(self) -> Figures:
        cpu = {stage: round(median(values), 2) for stage, values in self.cpu_ms.items() if values}
        return Figures(self.name, len(self.bytes), int(median(self.bytes)), cpu)


def sessions(model: str, tokens: int) -> list[Session]:
    """Both sessions. Each has a system prompt of its own, of about this many tokens."""
    tools = [
        {"name": f"tool_{number}", "description": manual("tool", 100), "input_schema": SCHEMA}
        for number in range(20)
    ]
    found = []
    for name, threaded in (("thread", True), ("whole history", False)):
        system = manual(name, tokens)
        head = {"model": model, "max_tokens": 64, "system": system, "tools": tools}
        found.append(Session(name, head, threaded=threaded))
    return found


async def measure(own: Running, asked: argparse.Namespace) -> list[Figures]:
    """Plays both sessions; measures the turns after `--history` of them. Raises
    aiohttp.ClientError."""
    both = sessions(own.model, asked.tokens)
    meter = Meter({name: pid for name, pid in own.pids.items() if name in STAGES})
    headers = {"content-type": "application/json"}
    async with aiohttp.ClientSession(own.url, headers=headers, raise_for_status=True) as http:
        for number in range(asked.history + asked.turns):
            for session in both:
                text = f"{manual(f'Result {number}', asked.result)} {PLAY}"
                meter.start()
                size = await session.ask(http, text)
                await asyncio.sleep(SETTLE_S)
                cost = meter.stop()
                if number >= asked.history:
                    session.bytes.append(size)
                    for stage, seconds in cost.processes.items():
                        session.cpu_ms[stage].append(seconds * 1000)
    return [session.figures() for session in both]


async def run(asked: argparse.Namespace, arguments: Sequence[str]) -> Result:
    """The whole experiment. Raises StackFailed, aiohttp.ClientError."""
    async with own_stack(arguments) as own:
        figures = await measure(own, asked)
    return Result(report.now(), report.this_machine(), asked.history, figures)


def show(result: Result) -> None:
    """Prints the figures, a line for each session."""
    for one in result.figures:
        stages = ", ".join(f"{stage} {ms:g} ms" for stage, ms in one.cpu_ms.items())
        print(f"{one.session:14} {one.request_bytes:8} bytes a request; CPU a turn: {stages}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    own, stack_arguments = split(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="python -m bench.threads",
        description="The CPU of a turn in a message thread, beside one with the whole history.",
        epilog="Everything after -- goes to `turnwire up`.",
    )
    parser.add_argument("--history", type=int, default=50, help="turns before the first measured")
    parser.add_argument("--turns", type=int, default=30, help="measured turns of each session")
    parser.add_argument("--tokens", type=int, default=4000, help="of the system prompt, about")
    parser.add_argument("--result", type=int, default=500, help="tokens of each message, about")
    asked = parser.parse_args(own)
    try:
        result = asyncio.run(run(asked, stack_arguments))
    except (StackFailed, aiohttp.ClientError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    show(result)
    report.write(result, report.new_path(result.started, "threads"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
