"""The cases in which streams run at once: throughput, latency between tokens, dispatch of calls,
memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence

from msgspec.structs import replace

from bench.apis import Api
from bench.client import Mode
from bench.cpu import Memory
from bench.exchange import Exchange
from bench.loops import Arrivals, arrival_plan, closed_loop, open_loop
from bench.measuring import Site, measured
from bench.prompts import NUMBER, story_prompt
from bench.rows import Case, Row
from bench.stats import spread

DISPATCH_SCRIPTS = ("call_then_text", "call_then_thought", "call_then_call", "call_then_end")
FLAT_OUT_REQUESTS = {1: 40, 16: 16, 64: 8, 256: 4}
PACED_REQUESTS = {1: 2}
FEWEST = 2


async def stream(
    site: Site,
    *,
    clients: Sequence[int],
    delays_ms: Sequence[float],
    tokens: int,
    mode: Mode,
    each: int | None,
) -> AsyncIterator[Row]:
    """Many streams at once, `each` after another for each client; by default fewer where there are
    more clients."""
    for delay in delays_ms:
        for count in clients:
            planned = (PACED_REQUESTS if delay else FLAT_OUT_REQUESTS).get(count, FEWEST)
            case = Case("stream", site.api.name, mode, clients=count, delay_ms=delay, tokens=tokens)
            body = _story(site, f"text n={tokens} delay={delay:g}", tokens)
            yield await _closed(site, case, body, each=each or planned)


async def arrive(
    site: Site,
    *,
    rate_per_s: float,
    duration_s: float,
    arrivals: Arrivals,
    tokens: int,
    delay_ms: float,
    mode: Mode,
) -> AsyncIterator[Row]:
    """Open loop: requests come at a rate, whether or not earlier ones were answered."""
    body = _story(site, f"text n={tokens} delay={delay_ms:g}", tokens)
    plan = arrival_plan(rate_per_s, duration_s, arrivals, site.seed)
    case = Case(
        "open",
        site.api.name,
        mode,
        clients=0,
        delay_ms=delay_ms,
        tokens=tokens,
        rate_per_s=rate_per_s,
    )
    client = site.client(mode)
    try:
        yield await measured(site, case, lambda: open_loop(client, body, plan))
    finally:
        client.close()


async def hold(
    site: Site, *, clients: int, tokens: int, delay_ms: float, mode: Mode, ramp_s: float
) -> AsyncIterator[Row]:
    """Streams that are all open at once, and slow. Memory is of a moment at which all of them
    run."""
    case = Case("hold", site.api.name, mode, clients=clients, delay_ms=delay_ms, tokens=tokens)
    body = _story(site, f"text n={tokens} delay={delay_ms:g}", tokens)
    lasts_s = tokens * delay_ms / 1e3
    client = site.client(mode)
    held: dict[str, Memory] = {}

    async def look() -> None:
        await asyncio.sleep((ramp_s + lasts_s) / 2)
        held.update(site.memory())

    async def run() -> list[Exchange]:
        async with asyncio.TaskGroup() as group:
            group.create_task(look())
            done = group.create_task(closed_loop(client, body, clients, 1, ramp_s=ramp_s))
        return done.result()

    try:
        row = await measured(site, case, run)
    finally:
        client.close()
    yield replace(row, memory=held)


async def idle(site: Site, seconds: float) -> Row:
    """The cost of the processes while there are no requests."""

    async def run() -> list[Exchange]:
        await asyncio.sleep(seconds)
        return []

    return replace(
        await measured(site, Case("idle", site.api.name, "keepalive"), run), wall_s=seconds
    )


async def dispatch(
    site: Site,
    *,
    scripts: Sequence[str],
    clients: int,
    each: int,
    tokens: int,
    delay_ms: float,
    mode: Mode,
) -> AsyncIterator[Row]:
    """A tool call in mid-turn: how long from its last token in the worker to the event with which
    it can start.

    Clients begin one after the other over the time of a turn, so that calls end at any time.
    """
    for script in scripts:
        case = Case(
            "dispatch",
            site.api.name,
            mode,
            clients=clients,
            delay_ms=delay_ms,
            tokens=tokens,
            script=script,
        )
        ids = [f"{script}-{site.api.name}-{site.seed}-{number}" for number in range(clients * each)]

        def body(number: int, script: str = script, ids: Sequence[str] = ids) -> bytes:
            prompt = story_prompt(f"{script} n={tokens} delay={delay_ms:g} id={ids[number]}")
            return json.dumps(site.api.body(prompt, site.model)).encode()

        exchanges: list[Exchange] = []
        row = await _closed(
            site, case, body, each=each, kept=exchanges, ramp_s=tokens * delay_ms / 1e3
        )
        for clock in site.clocks:
            for mark in clock.marks:
                left = [
                    clock.left_at(mark, play_id, turn_of(one))
                    for one, play_id in zip(exchanges, ids, strict=True)
                ]
                yield _with_lags(row, f"{clock.name}: {mark}", site.api, exchanges, left)
        if not site.clocks:
            yield _with_lags(row, "none", site.api, exchanges, [None] * len(ids))


def turn_of(exchange: Exchange) -> str:
    """Turnwire's id of the turn, from the response's headers; "" where there is none."""
    return exchange.headers.get(b"request-id", b"").decode().removeprefix("req_")


def _with_lags(
    row: Row, clock: str, api: Api, exchanges: Sequence[Exchange], left: Sequence[int | None]
) -> Row:
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


def _story(site: Site, play: str, max_tokens: int) -> Callable[[int], bytes]:
    """The limit is for engines that play no script."""
    prompt = replace(story_prompt(f"{play} id={NUMBER.decode()}"), max_tokens=max_tokens)
    body = json.dumps(site.api.body(prompt, site.model)).encode()
    return lambda number: body.replace(NUMBER, b"%08d" % number)


async def _closed(
    site: Site,
    case: Case,
    body: Callable[[int], bytes],
    *,
    each: int,
    kept: list[Exchange] | None = None,
    ramp_s: float = 0.0,
) -> Row:
    client = site.client(case.mode)
    keep = kept is not None
    try:
        return await measured(
            site,
            case,
            lambda: closed_loop(client, body, case.clients, each, ramp_s=ramp_s, keep=keep),
            kept,
        )
    finally:
        client.close()
