"""`python -m bench.load`: measures single cases on a running server, or on a stack of our own.

Each case is a line; every figure is in the result file.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bench import report, scenarios
from bench.apis import APIS
from bench.client import Target
from bench.clocks import Marks
from bench.command import allow_many_sockets, loop_factory, split
from bench.cpu import parse_pids, stages
from bench.measuring import Site
from bench.prompts import KINDS
from bench.rows import Row
from bench.scenarios import DISPATCH_SCRIPTS
from bench.stack import StackFailed, own_stack

SCENARIOS = ("ttft", "stream", "dispatch")
DISPATCH_CLIENTS = 5


class Run(msgspec.Struct, frozen=True):
    """One run."""

    started: str
    url: str
    model: str
    machine: report.Machine
    rows: list[Row]


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.load",
        description="Load on a serving path, and what it costs. Without --url a stack of our own "
        "is started.",
        epilog="Everything after -- goes to `turnwire up`, e.g. -- --parsers 2 --workers 2",
    )
    add = parser.add_argument
    add("scenario", nargs="*", choices=[*SCENARIOS, []], help="default: all of them")
    add("--url", help="base URL of a running server")
    add("--model", help="name of the model; default: the first that the server lists")
    add("--api", choices=sorted(APIS), default="messages")
    add("--key", help="API key")
    add("--pid", action="append", default=[], metavar="NAME=PID", help="a process to meter")
    add("--requests", type=int, default=30, help="of a case of ttft, and of dispatch")
    add("--streams", type=int, nargs="+", default=[1, 16, 64, 256], metavar="N")
    add("--delays", type=float, nargs="+", default=[10.0, 0.0], metavar="MS", help="of a token")
    add("--tokens", type=int, default=512, help="of a stream; dispatch has 200")
    add("--quick", action="store_true", help="few and short cases: does it work?")
    add("--timeout", type=float, default=120.0, metavar="S", help="for one request")
    add("--out", type=Path, help="result file; default: one in bench/results")
    return parser


@asynccontextmanager
async def open_site(asked: argparse.Namespace, flags: Sequence[str]) -> AsyncIterator[Site]:
    """Yields the server that is to be measured; without a URL a stack of our own.

    Raises StackFailed, ValueError, OSError, aiohttp.ClientError.
    """
    site = Site(
        target=Target("", 0),
        api=APIS[asked.api],
        model=asked.model or "",
        key=asked.key,
        pids=parse_pids(asked.pid),
        timeout_s=asked.timeout,
        seed=int(time.time()) % 100_000_000,
    )
    replace = msgspec.structs.replace
    if asked.url is not None:
        model = asked.model or await first_model(asked.url, asked.key)
        yield replace(site, target=Target.of(asked.url), model=model)
        return
    print("starting a stack of our own", flush=True)
    async with own_stack(flags) as own:
        pids = {**stages(own.pid), **site.pids}
        target = Target.of(own.url)
        yield replace(site, target=target, model=own.model, pids=pids, marks=Marks(own.marks))


async def cases(site: Site, asked: argparse.Namespace) -> AsyncIterator[Row]:
    """Measures all requested cases."""
    chosen = asked.scenario or SCENARIOS
    requests, streams = asked.requests, asked.streams
    if asked.quick:
        requests, streams = 6, [1, 16]
    if "ttft" in chosen:
        async for row in scenarios.ttft(site, ["small", "large"], KINDS, requests):
            yield row
    if "stream" in chosen:
        for delay in asked.delays:
            for clients in streams:
                yield await scenarios.stream(
                    site, clients=clients, delay_ms=delay, tokens=asked.tokens
                )
    if "dispatch" in chosen:
        each = max(1, requests // DISPATCH_CLIENTS)
        for script in DISPATCH_SCRIPTS:
            rows = await scenarios.dispatch(
                site, script, clients=DISPATCH_CLIENTS, each=each, tokens=200, delay_ms=10.0
            )
            for row in rows:
                yield row


async def run(asked: argparse.Namespace, flags: Sequence[str]) -> Run:
    """Measures, and prints each case. Raises as `open_site`."""
    started, machine = report.now(), report.this_machine()
    async with open_site(asked, flags) as site:
        rows = []
        async for row in cases(site, asked):
            print(brief(row), flush=True)
            rows.append(row)
        url = f"http://{site.target.host}:{site.target.port}{site.target.base}"
        return Run(started, url, site.model, machine, rows)


def brief(row: Row) -> str:
    """One line on a row."""
    case = row.case
    what = case.prompt or f"{case.script} {case.clients} streams {case.delay_ms:g} ms {case.clock}"
    parts = [f"{case.scenario:8} {what} {case.mode}: {row.tokens_per_s:,.0f} tokens/s"]
    spreads = {"ttft": row.ttft_ms, "itl": row.itl_ms, "lag": row.dispatch_ms}
    parts += [
        f"{name} {spread.p50:.2f}/{spread.p99:.2f} ms"
        for name, spread in spreads.items()
        if spread is not None
    ]
    if row.cpu_us_per_token:
        parts.append(f"{row.cpu_us_per_token:.1f} us of CPU per token")
    if row.disturbed > report.BUSY_CORES:
        parts.append(f"others {row.disturbed:.2f} cores")
    parts += [f"{count} FAILED: {error}" for error, count in row.errors.items()]
    return "  ".join(parts)


async def first_model(url: str, key: str | None) -> str:
    """The first model that the server lists. Raises ValueError if it lists none."""
    headers = {"x-api-key": key, "authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(headers=headers) as session:
        answer = await session.get(f"{url.rstrip('/')}/v1/models")
        listed: Any = await answer.json(content_type=None)
    models = listed.get("data") if isinstance(listed, dict) else None
    if not models:
        raise ValueError(f"{url} lists no model; name one with --model")
    return str(models[0]["id"])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the load. Returns 0 if all answers were good; 1 if not, or if it could not run; 2 for
    wrong usage."""
    own, flags = split(sys.argv[1:] if argv is None else argv)
    asked = arguments().parse_args(own)
    try:
        allow_many_sockets()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            result = runner.run(run(asked, flags))
    except (StackFailed, ValueError, OSError, aiohttp.ClientError) as error:
        print(f"bench.load: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1
    path = asked.out or report.new_path(result.started, "load")
    report.write(result, path)
    print(f"written to {path}")
    return 1 if any(row.failed for row in result.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
