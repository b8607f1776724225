"""Defines the cases: requests one after the other, and streams that run at once.

Time to first token, throughput, latency between tokens, dispatch of calls, memory.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence

from msgspec.structs import replace

from bench.client import MODES, Mode
from bench.clocks import MARKS
from bench.cpu import Memory
from bench.exchange import Exchange
from bench.loops import closed_loop
from bench.measuring import Site, measured
from bench.prompts import NUMBER, SHORT_PLAY, Kind, Size, make_body, story_prompt
from bench.rows import Case, Row, spread

STREAM_MODE: Mode = "keepalive"
FLAT_OUT_REQUESTS = {1: 40, 16: 16, 64: 8, 256: 4}
PACED_REQUESTS = {1: 2}
FEWEST = 2


async def ttft(
    site: Site, sizes: Sequence[Size], kinds: Sequence[Kind], requests: int
) -> AsyncIterator[Row]:
    """Prompts in the shape of Claude Code's, one after the other; the worker answers at once.

    Each is sent on kept and on fresh connections.
    """
    cases = [(size, kind, mode) for size in sizes for kind in kinds for mode in MODES]
    for number, (size, kind, mode) in enumerate(cases):
        seed = site.seed + number * requests
        make = make_body(site.api, site.model, size=size, kind=kind, play=SHORT_PLAY, seed=seed)
        bodies = [make(number) for number in range(requests)]
        case = Case("ttft", site.api.name, mode, prompt=f"{size} {kind}")
        yield await _closed(site, case, bodies.__getitem__, each=requests, sequence=True)


async def stream(
    site: Site, *, clients: int, delay_ms: float, tokens: int, each: int | None = None
) -> Row:
    """Many streams at once, `each` after another for each client; by default fewer where there are
    more clients."""
    planned = (PACED_REQUESTS if delay_ms else FLAT_OUT_REQUESTS).get(clients, FEWEST)
    case = _stream_case("stream", site, clients, delay_ms, tokens)
    return await _closed(site, case, _story(site, tokens, delay_ms), each=each or planned)


async def hold(site: Site, *, clients: int, tokens: int, delay_ms: float, ramp_s: float) -> Row:
    """Streams that are all open at once, and slow. Memory is of a moment at which all of them
    run."""
    case = _stream_case("hold", site, clients, delay_ms, tokens)
    body = _story(site, tokens, delay_ms)
    lasts_s = tokens * delay_ms / 1e3
    client = site.client(case.mode)
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
    return replace(row, memory=held)


async def idle(site: Site, seconds: float) -> Row:
    """The cost of the processes while there are no requests."""

    async def run() -> list[Exchange]:
        await asyncio.sleep(seconds)
        return []

    row = await measured(site, Case("idle", site.api.name, STREAM_MODE), run)
    return replace(row, wall_s=seconds)


async def dispatch(
    site: Site, script: str, *, clients: int, each: int, tokens: int, delay_ms: float
) -> list[Row]:
    """A tool call in mid-turn: how long from its last token in the worker to the event with which
    it can start. A row for each of `MARKS`.

    Clients begin one after the other over the time of a turn, so that calls end at any time.
    """
    case = replace(_stream_case("dispatch", site, clients, delay_ms, tokens), script=script)
    ids = [f"{script}-{site.api.name}-{site.seed}-{number}" for number in range(clients * each)]

    def body(number: int) -> bytes:
        prompt = story_prompt(f"{script} n={tokens} delay={delay_ms:g} id={ids[number]}")
        return json.dumps(site.api.body(prompt, site.model)).encode()

    exchanges: list[Exchange] = []
    ramp_s = tokens * delay_ms / 1e3
    row = await _closed(site, case, body, each=each, kept=exchanges, ramp_s=ramp_s)
    assert site.marks is not None
    rows = []
    for mark in MARKS:
        left = [site.marks.left_at(mark, play_id) for play_id in ids]
        rows.append(_with_lags(row, f"marks: {mark}", site, exchanges, left))
    return rows


def _with_lags(
    row: Row, clock: str, site: Site, exchanges: Sequence[Exchange], left: Sequence[int | None]
) -> Row:
    lags: list[float] = []
    for exchange, at in zip(exchanges, left, strict=True):
        seen = site.api.call_done(exchange.each())
        if seen is not None and at is not None:
            lags.append((seen - at) / 1e6)
    return replace(
        row,
        case=replace(row.case, clock=clock),
        dispatch_ms=spread(lags),
        dispatch_missing=len(exchanges) - len(lags),
    )


def _stream_case(scenario: str, site: Site, clients: int, delay_ms: float, tokens: int) -> Case:
    name = site.api.name
    return Case(scenario, name, STREAM_MODE, clients=clients, delay_ms=delay_ms, tokens=tokens)


def _story(site: Site, tokens: int, delay_ms: float) -> Callable[[int], bytes]:
    """A stream of text. The limit of tokens is for engines that play no script."""
    play = f"text n={tokens} delay={delay_ms:g} id={NUMBER.decode()}"
    prompt = replace(story_prompt(play), max_tokens=tokens)
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
    sequence: bool = False,
) -> Row:
    client = site.client(case.mode)
    keep = kept is not None

    async def run() -> list[Exchange]:
        return await closed_loop(client, body, case.clients, each, ramp_s=ramp_s, keep=keep)

    try:
        return await measured(site, case, run, kept, sequence=sequence)
    finally:
        client.close()
