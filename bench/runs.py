"""One run: opens the requested site and runs the cases."""

import argparse
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
from msgspec.structs import replace

from bench import report, scenarios, sequences
from bench.apis import APIS
from bench.client import Target
from bench.clocks import Clock, Marks, Tap
from bench.cpu import parse_pids, stages
from bench.measuring import Site
from bench.rows import Row
from bench.stack import own_stack

CLOSER = "</tool_call>"
"""The last token of a call as `bench/scripts` writes it."""
DISPATCH_TOKENS = 200
DISPATCH_CLIENTS = 5
DISPATCH_DELAY_MS = 10.0

Say = Callable[[str], None]


@asynccontextmanager
async def open_run(
    asked: argparse.Namespace, stack_arguments: Sequence[str]
) -> AsyncIterator[tuple[report.Run, Site]]:
    """Opens the site, by default a stack of our own. Yields a run without rows, and the site.

    Raises StackFailed, ValueError, OSError, aiohttp.ClientError.
    """
    run = report.Run(
        report.now(), asked.label, asked.url or "", asked.model or "", report.this_machine(), []
    )
    up, nats_url, marks = asked.up, asked.nats, asked.marks
    async with AsyncExitStack() as opened:
        if asked.url is None:
            own = await opened.enter_async_context(own_stack(stack_arguments))
            run = replace(run, url=own.url, model=own.model, start_s=own.start_s)
            up, marks, nats_url = own.pid, own.marks, nats_url or own.nats_url
        if not run.model:
            run = replace(run, model=await first_model(run.url, asked.key))
        clocks: list[Clock] = [Marks(marks)] if marks else []
        if nats_url and "dispatch" in asked.scenario:
            closer = await token_ids(run.url, run.model, CLOSER, asked.key)
            clocks.append(await opened.enter_async_context(Tap(nats_url, closer)))
        site = Site(
            target=Target.of(run.url),
            api=APIS[asked.api],
            model=run.model,
            key=asked.key,
            pids=(stages(up) if up else {}) | parse_pids(asked.pid),
            clocks=clocks,
            timeout_s=asked.timeout,
            quiet_wait_s=asked.quiet,
            seed=int(time.time()) % 100_000_000,
        )
        yield run, site


async def cases(site: Site, asked: argparse.Namespace, say: Say) -> list[Row]:
    """Runs the cases in the requested order."""
    rows = []
    for scenario in asked.scenario:
        async for row in _scenario(scenario, site, asked):
            say(brief(row))
            rows.append(row)
    return rows


def _scenario(name: str, site: Site, asked: argparse.Namespace) -> AsyncIterator[Row]:
    mode = asked.connections[0]
    if name == "ttft":
        return sequences.ttft(
            site,
            sizes=asked.sizes,
            kinds=asked.kinds,
            modes=asked.connections,
            requests=asked.requests,
        )
    if name == "stream":
        return scenarios.stream(
            site,
            clients=asked.streams,
            delays_ms=asked.delays,
            tokens=asked.tokens,
            mode=mode,
            each=asked.each,
        )
    if name == "open":
        return scenarios.arrive(
            site,
            rate_per_s=asked.rate,
            duration_s=asked.duration,
            arrivals=asked.arrivals,
            tokens=asked.tokens,
            delay_ms=asked.delays[0],
            mode=mode,
        )
    return scenarios.dispatch(
        site,
        scripts=asked.scripts,
        clients=DISPATCH_CLIENTS,
        each=max(1, asked.requests // DISPATCH_CLIENTS),
        tokens=DISPATCH_TOKENS,
        delay_ms=DISPATCH_DELAY_MS,
        mode=mode,
    )


def brief(row: Row) -> str:
    """One line on a row, printed as progress."""
    case = row.case
    what = (
        case.prompt
        or case.script
        or (f"{case.rate_per_s:g}/s" if case.rate_per_s else f"{case.clients} streams")
    )
    pace = "" if case.delay_ms is None else f" {case.delay_ms:g} ms"
    figures = "".join(
        f"  {name} {spread.p50:.2f}/{spread.p99:.2f}"
        for name, spread in (("ttft", row.ttft_ms), ("itl", row.itl_ms), ("lag", row.dispatch_ms))
        if spread is not None
    )
    cpu = f"  {sum(row.cpu_us_per_token.values()):.1f} us/token" if row.cpu_us_per_token else ""
    failed = f"  {row.failed} FAILED" if row.failed else ""
    return (
        f"{case.scenario:8} {what}{pace} {case.mode}: {row.tokens_per_s:,.0f} "
        f"tokens/s{figures}{cpu}{failed}"
    )


async def first_model(url: str, key: str | None) -> str:
    """The first model that the server lists. Raises ValueError if it lists none."""
    listed = await _ask("GET", url, "/v1/models", key)
    models = listed.get("data") if isinstance(listed, dict) else None
    if not models:
        raise ValueError(f"{url} lists no model; name one with --model")
    return str(models[0]["id"])


async def token_ids(url: str, model: str, text: str, key: str | None) -> list[int]:
    """Requests the token ids of a text from Turnwire. Raises ValueError if the server has none."""
    told = await _ask("POST", url, "/v1/tokenize", key, {"model": model, "prompt": text})
    if not isinstance(told, dict) or not told.get("tokens"):
        raise ValueError(f"{url} does not tell the token ids of {text}, which --nats needs")
    return [int(token) for token in told["tokens"]]


async def _ask(method: str, url: str, path: str, key: str | None, body: object = None) -> Any:
    headers = {"x-api-key": key, "authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(headers=headers) as session:
        answer = await session.request(method, url.rstrip("/") + path, json=body)
        return await answer.json(content_type=None)
