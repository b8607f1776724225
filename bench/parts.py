"""Defines the parts of a suite: the measurements on every side, in order.

Capacity, time to first token, streams, dispatch of calls, memory.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from bench import capacity
from bench.apis import APIS, Api
from bench.capacity import Loads, closed_loop
from bench.client import MODES, Mode
from bench.cpu import Memory
from bench.exchange import Exchange
from bench.measuring import MARKS, Mark, Site, measured
from bench.prompts import NUMBER, SHORT_PLAY, Kind, Size, make_body, story_prompt
from bench.rows import Case, Row, spread

LATE = 200
"""The turn of a session that is measured with few clients."""
STREAM_MODE: Mode = "keepalive"
FLAT_OUT_REQUESTS = {1: 40, 16: 16, 64: 8, 256: 4}
PACED_REQUESTS = {1: 2}
FEWEST = 2
SIDE_APIS = ("chat", "responses")
"""The APIs that are measured with few streams."""
DISPATCH_TOKENS, DISPATCH_DELAY_MS = 200, 10.0


class Sizes(Struct, frozen=True):
    """The sizes of all parts."""

    idle_s: float = 3.0
    hold_streams: int = 1000
    hold_tokens: int = 40
    hold_delay_ms: float = 500.0
    hold_ramp_s: float = 8.0
    requests: int = 20
    streams: tuple[int, ...] = (1, 16, 64, 256)
    delays_ms: tuple[float, ...] = (10.0, 0.0)
    tokens: int = 512
    side_streams: tuple[tuple[int, float], ...] = ((64, 10.0), (256, 0.0))
    """Streams and pace that Chat and Responses are measured with."""
    single_events: tuple[tuple[int, float], ...] = ((64, 2.0),)
    """Streams and the fastest pace at which every side still has an event for each token."""
    dispatch_scripts: tuple[str, ...] = ("call_then_text", "call_then_call")
    dispatch_clients: int = 8
    dispatch_each: int = 3
    prompt_loads: Loads = ((1, 200), (4, 400), (16, 800), (64, 1280))
    """Number of clients, and of the requests of all clients together."""
    session_loads: Loads = ((1, 20), (4, 40), (16, 64), (64, 64))
    """Number of clients, and of the sessions of all clients together."""
    session_turns: int = 10
    late_loads: Loads = ((1, 8),)
    """Clients and sessions at turn 200."""
    capacity_limit_s: float = 20.0
    """Time limit of a case: no request starts later."""


QUICK = Sizes(
    idle_s=1.0,
    hold_streams=100,
    hold_tokens=8,
    hold_ramp_s=1.0,
    requests=5,
    streams=(1, 16, 64),
    tokens=128,
    side_streams=((16, 10.0), (64, 0.0)),
    single_events=((16, 2.0),),
    dispatch_scripts=("call_then_text",),
    dispatch_clients=4,
    dispatch_each=1,
    prompt_loads=((1, 20), (4, 40), (16, 64), (64, 128)),
    session_loads=((1, 1), (4, 4), (16, 16)),
    session_turns=3,
    late_loads=((1, 1),),
)
"""Small sizes, to check that everything works."""

Part: TypeAlias = Callable[[Site, Sizes], AsyncIterator[Row]]


async def prompt_capacity(site: Site, sizes: Sizes, *, kind: Kind) -> AsyncIterator[Row]:
    """How many long prompts a side serves, and how fast, by the number of clients."""
    async for row in capacity.prompts(site, kind, sizes.prompt_loads, sizes.capacity_limit_s):
        yield row


async def session_capacity(site: Site, sizes: Sizes, *, turn: int) -> AsyncIterator[Row]:
    """How many turns of agents' sessions a side serves, and how fast, by the number of clients."""
    loads = sizes.session_loads if turn < LATE else sizes.late_loads
    async for row in capacity.turns(site, turn, loads, sizes.session_turns, sizes.capacity_limit_s):
        yield row


async def ttft(site: Site, sizes: Sizes) -> AsyncIterator[Row]:
    """Time to first token on the three APIs, on kept and on fresh connections: prompts in the shape
    of Claude Code's, one after the other; the worker answers at once.

    A long prompt's repeated prefix comes first, because Dynamo keeps only the tokens of the first
    system prompt that a process sees. So it has its best figures here.
    """
    prompts: Sequence[tuple[str, Size, Kind]] = [
        (site.api.name, "large", "tail"),
        *((api, "small", "tail") for api in APIS),
        *((api, "large", "tail") for api in APIS if api != site.api.name),
        *((api, "large", "head") for api in APIS),
        *((api, "large", "fresh") for api in APIS),
    ]
    cases = [(*prompt, mode) for prompt in prompts for mode in MODES]
    for number, (api, size, kind, mode) in enumerate(cases):
        at = replace(site, api=APIS[api])
        seed = site.seed + number * sizes.requests
        make = make_body(at.api, at.model, size=size, kind=kind, play=SHORT_PLAY, seed=seed)
        bodies = [make(number) for number in range(sizes.requests)]
        case = Case("ttft", api, mode, prompt=f"{size} {kind}")
        yield await _closed(at, case, bodies.__getitem__, each=sizes.requests, sequence=True)


async def stream(site: Site, sizes: Sizes) -> AsyncIterator[Row]:
    """Streams at a pace and flat out: tokens per second, latency between tokens."""
    for delay in sizes.delays_ms:
        for clients in sizes.streams:
            planned = PACED_REQUESTS if delay else FLAT_OUT_REQUESTS
            yield await _streams(site, sizes, clients, delay, planned.get(clients, FEWEST))
    for clients, delay in sizes.single_events:
        yield await _streams(site, sizes, clients, delay, 4)
    for api in SIDE_APIS:
        for clients, delay in sizes.side_streams:
            each = 1 if delay else 4
            yield await _streams(replace(site, api=APIS[api]), sizes, clients, delay, each)


async def _streams(site: Site, sizes: Sizes, clients: int, delay_ms: float, each: int) -> Row:
    """Many streams at once, `each` after another for each client."""
    case = _stream_case("stream", site, clients, delay_ms, sizes.tokens)
    return await _closed(site, case, _story(site, sizes.tokens, delay_ms), each=each)


async def dispatch(site: Site, sizes: Sizes) -> AsyncIterator[Row]:
    """A tool call in mid-turn, on the three APIs: how long from its last token in the worker to the
    event with which it can start. A row for each of `MARKS`.

    Clients begin one after the other over the time of a turn, so that calls end at any time.
    """
    tokens, delay_ms, clients = DISPATCH_TOKENS, DISPATCH_DELAY_MS, sizes.dispatch_clients
    assert site.marks is not None
    for api in APIS.values():
        at = replace(site, api=api)
        for script in sizes.dispatch_scripts:
            case = _stream_case("dispatch", at, clients, delay_ms, tokens)
            count = clients * sizes.dispatch_each
            ids = [f"{script}-{api.name}-{site.seed}-{number}" for number in range(count)]
            plays = [f"{script} n={tokens} delay={delay_ms:g} id={play_id}" for play_id in ids]
            bodies = [json.dumps(api.body(story_prompt(play), site.model)) for play in plays]
            exchanges: list[Exchange] = []
            row = await _closed(
                at,
                replace(case, script=script),
                [body.encode() for body in bodies].__getitem__,
                each=sizes.dispatch_each,
                kept=exchanges,
                ramp_s=tokens * delay_ms / 1e3,
            )
            for mark in MARKS:
                left = [site.marks.left_at(mark, play_id) for play_id in ids]
                yield _with_lags(row, mark, api, exchanges, left)


def _with_lags(
    row: Row, mark: Mark, api: Api, exchanges: Sequence[Exchange], left: Sequence[int | None]
) -> Row:
    lags: list[float] = []
    for exchange, at in zip(exchanges, left, strict=True):
        seen = api.call_done(exchange.each())
        if seen is not None and at is not None:
            lags.append((seen - at) / 1e6)
    return replace(
        row,
        case=replace(row.case, clock=f"marks: {mark}"),
        dispatch_ms=spread(lags),
        dispatch_missing=len(exchanges) - len(lags),
    )


async def idle(site: Site, sizes: Sizes) -> AsyncIterator[Row]:
    """The cost of an idle side: memory, and the CPU that it takes from the other side's
    measurements."""

    async def run() -> list[Exchange]:
        await asyncio.sleep(sizes.idle_s)
        return []

    row = await measured(site, Case("idle", site.api.name, STREAM_MODE), run)
    yield replace(row, wall_s=sizes.idle_s)


async def hold(site: Site, sizes: Sizes) -> AsyncIterator[Row]:
    """Streams that are all open at once, and slow: their memory, and whether one of them starves.
    Memory is of a moment at which all of them run."""
    clients, tokens, delay_ms = sizes.hold_streams, sizes.hold_tokens, sizes.hold_delay_ms
    case = _stream_case("hold", site, clients, delay_ms, tokens)
    held: dict[str, Memory] = {}

    async def look() -> None:
        await asyncio.sleep((sizes.hold_ramp_s + tokens * delay_ms / 1e3) / 2)
        held.update(site.memory())

    looking = asyncio.create_task(look())
    body = _story(site, tokens, delay_ms)
    row = await _closed(site, case, body, each=1, ramp_s=sizes.hold_ramp_s)
    await looking
    yield replace(row, memory=held)


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


PARTS: dict[str, Part] = {
    "capacity known": partial(prompt_capacity, kind="tail"),
    "capacity new": partial(prompt_capacity, kind="fresh"),
    "capacity turn 20": partial(session_capacity, turn=20),
    "capacity turn 100": partial(session_capacity, turn=100),
    "capacity turn 200": partial(session_capacity, turn=LATE),
    "ttft": ttft,
    "stream": stream,
    "dispatch": dispatch,
    "idle": idle,
    "hold": hold,
}
CAPACITY = tuple(part for part in PARTS if part.startswith("capacity"))
SESSIONS: Sequence[Sequence[str]] = (CAPACITY, ("ttft", "stream", "dispatch"), ("idle", "hold"))
"""Parts of one session share a stack; each session has fresh stacks, so that caches filled by long
prompts do not count as memory of streams."""
