"""The cases that are measured, one row each."""

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from bench.apis import Api
from bench.client import Client, Mode, Target
from bench.clocks import Clock
from bench.cpu import Meter, machine_busy_seconds, memory
from bench.exchange import Exchange
from bench.loops import Arrivals, arrival_plan, closed_loop, open_loop
from bench.prompts import NUMBER, Kind, Size, make_body, story_prompt
from bench.rows import Case, Row, make_row
from bench.stats import spread

DISPATCH_SCRIPTS = ("call_then_text", "call_then_thought", "call_then_call", "call_then_end")
ANSWER_TOKENS = 16
QUIET = 0.15
"""Cores in use by others below which the machine counts as idle."""
FLAT_OUT_REQUESTS = {1: 40, 16: 8, 64: 4}
PACED_REQUESTS = {1: 3, 16: 2}
FEWEST = 2


class Site(Struct, frozen=True):
    """What is measured, and what is known of it besides its URL."""

    target: Target
    api: Api
    model: str
    key: str | None = None
    pids: Mapping[str, int] = {}
    clocks: Sequence[Clock] = ()
    timeout_s: float = 120.0
    quiet_wait_s: float = 0.0
    """How long to wait, before each case, for the machine to be idle."""
    seed: int = 0
    """Makes this run's prompts different from those of earlier runs against the same server."""

    def client(self, mode: Mode) -> Client:
        """A client without connections yet."""
        headers = {"x-api-key": self.key, "authorization": f"Bearer {self.key}"} if self.key else None
        return Client(self.target, self.api, mode, headers=headers, timeout_s=self.timeout_s)


async def ttft(
    site: Site, sizes: Sequence[Size], kinds: Sequence[Kind], modes: Sequence[Mode], requests: int
) -> AsyncIterator[Row]:
    """Time to first token, one request after the other; the worker answers at once."""
    for number, (size, kind, mode) in enumerate((s, k, m) for s in sizes for k in kinds for m in modes):
        play = f"text n={ANSWER_TOKENS} delay=0"
        make = make_body(site.api, site.model, size=size, kind=kind, play=play, seed=site.seed + number * requests)
        bodies = [make(request) for request in range(requests)]
        case = Case("ttft", site.api.name, mode, prompt=f"{size} {kind}")
        yield await _closed(site, case, bodies.__getitem__, mode=mode, clients=1, each=requests, sequence=True)


async def stream(
    site: Site, *, clients: Sequence[int], delays_ms: Sequence[float], tokens: int, mode: Mode, each: int | None
) -> AsyncIterator[Row]:
    """Many streams at once, `each` after another for each client; by default fewer where there are more clients."""
    for delay in delays_ms:
        for count in clients:
            planned = (PACED_REQUESTS if delay else FLAT_OUT_REQUESTS).get(count, FEWEST)
            case = Case("stream", site.api.name, mode, clients=count, delay_ms=delay, tokens=tokens)
            body = _story(site, f"text n={tokens} delay={delay:g}")
            yield await _closed(site, case, body, mode=mode, clients=count, each=each or planned)


async def arrive(
    site: Site, *, rate_per_s: float, duration_s: float, arrivals: Arrivals, tokens: int, delay_ms: float, mode: Mode
) -> AsyncIterator[Row]:
    """Open loop: requests come at a rate, whether or not earlier ones were answered."""
    body = _story(site, f"text n={tokens} delay={delay_ms:g}")
    plan = arrival_plan(rate_per_s, duration_s, arrivals, site.seed)
    case = Case("open", site.api.name, mode, clients=0, delay_ms=delay_ms, tokens=tokens, rate_per_s=rate_per_s)
    client = site.client(mode)
    try:
        yield await _measured(site, case, lambda: open_loop(client, body, plan))
    finally:
        client.close()


async def dispatch(
    site: Site, *, scripts: Sequence[str], requests: int, tokens: int, delay_ms: float, mode: Mode
) -> AsyncIterator[Row]:
    """A tool call in mid-turn: how long from its last token in the worker to the event with which it can start."""
    for script in scripts:
        case = Case("dispatch", site.api.name, mode, delay_ms=delay_ms, tokens=tokens, script=script)
        client = site.client(mode)
        ids = [f"{script}-{site.seed}-{number}" for number in range(requests)]

        async def run(client: Client = client, script: str = script, ids: Sequence[str] = ids) -> list[Exchange]:
            await client.warm(1)
            done = []
            for play_id in ids:
                prompt = story_prompt(f"{script} n={tokens} delay={delay_ms:g} id={play_id}")
                body = json.dumps(site.api.body(prompt, site.model)).encode()
                done.append(await client.exchange(body, keep=True))
            return done

        exchanges: list[Exchange] = []
        try:
            row = await _measured(site, case, run, exchanges)
        finally:
            client.close()
        for clock in site.clocks:
            for mark in clock.marks:
                left = [clock.left_at(mark, play_id, turn_of(one)) for one, play_id in zip(exchanges, ids, strict=True)]
                yield _with_lags(row, f"{clock.name}: {mark}", site.api, exchanges, left)
        if not site.clocks:
            yield _with_lags(row, "none", site.api, exchanges, [None] * len(ids))


def turn_of(exchange: Exchange) -> str:
    """Turnwire's id of the turn, from the response's headers; "" where there is none."""
    return exchange.headers.get(b"request-id", b"").decode().removeprefix("req_")


def _with_lags(row: Row, clock: str, api: Api, exchanges: Sequence[Exchange], left: Sequence[int | None]) -> Row:
    lags, ends, missing = [], [], 0
    for exchange, at in zip(exchanges, left, strict=True):
        seen = api.call_done(exchange.each())
        if seen is None or at is None:
            missing += 1
            continue
        lags.append((seen - at) / 1e6)
        ends.append((exchange.ended - at) / 1e6)
    return replace(
        row,
        case=replace(row.case, clock=clock),
        dispatch_ms=spread(lags),
        dispatch_missing=missing,
        turn_end_ms=spread(ends),
    )


def _story(site: Site, play: str) -> Callable[[int], bytes]:
    body = json.dumps(site.api.body(story_prompt(f"{play} id={NUMBER.decode()}"), site.model)).encode()
    return lambda number: body.replace(NUMBER, b"%08d" % number)


async def _closed(
    site: Site,
    case: Case,
    body: Callable[[int], bytes],
    *,
    mode: Mode,
    clients: int,
    each: int,
    sequence: bool = False,
) -> Row:
    client = site.client(mode)
    try:
        return await _measured(site, case, lambda: closed_loop(client, body, clients, each), sequence=sequence)
    finally:
        client.close()


async def _measured(
    site: Site,
    case: Case,
    run: Callable[[], Awaitable[list[Exchange]]],
    kept: list[Exchange] | None = None,
    *,
    sequence: bool = False,
) -> Row:
    """Runs a load with the meters on. The collector rests meanwhile: its pauses are the client's, not the server's."""
    await _quiet(site.quiet_wait_s)
    meter = Meter(site.pids)
    gc.collect()
    gc.disable()
    try:
        meter.start()
        exchanges = await run()
        cost = meter.stop()
    finally:
        gc.enable()
    if kept is not None:
        kept += exchanges
    held = {name: memory(pid) for name, pid in site.pids.items()}
    return make_row(case, site.api, exchanges, cost, held, sequence=sequence)


async def _quiet(wait_s: float) -> None:
    """Returns once the machine is idle, or after `wait_s`."""
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        before = machine_busy_seconds()
        await asyncio.sleep(1)
        if machine_busy_seconds() - before < QUIET:
            return
