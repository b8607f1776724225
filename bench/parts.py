"""Defines the parts of a suite: the measurements on every side, in order."""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from bench import capacity, scenarios
from bench.apis import APIS
from bench.capacity import Loads
from bench.measuring import Site
from bench.prompts import Kind
from bench.rows import Row

LARGE: tuple[Kind, ...] = ("tail", "head", "fresh")
LATE = 200
"""The turn of a session that is measured with few clients."""


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


async def idle(site: Site, sizes: Sizes) -> AsyncIterator[Row]:
    """The cost of an idle side: memory, and the CPU that it takes from the other side's
    measurements."""
    yield await scenarios.idle(site, sizes.idle_s)


async def hold(site: Site, sizes: Sizes) -> AsyncIterator[Row]:
    """Memory of open streams, and whether one of them starves."""
    yield await scenarios.hold(
        site,
        clients=sizes.hold_streams,
        tokens=sizes.hold_tokens,
        delay_ms=sizes.hold_delay_ms,
        ramp_s=sizes.hold_ramp_s,
    )


async def ttft(site: Site, sizes: Sizes) -> AsyncIterator[Row]:
    """Time to first token on the three APIs.

    A long prompt's repeated prefix comes first, because Dynamo keeps only the tokens of the first
    system prompt that a process sees. So it has its best figures here.
    """
    async for row in scenarios.ttft(site, ["large"], ["tail"], sizes.requests):
        yield row
    for number, api in enumerate(APIS.values()):
        at = replace(site, api=api, seed=site.seed + 300 * number)
        async for row in scenarios.ttft(at, ["small"], ["tail"], sizes.requests):
            yield row
        kinds = LARGE[1:] if api.name == site.api.name else LARGE
        async for row in scenarios.ttft(at, ["large"], kinds, sizes.requests):
            yield row


async def stream(site: Site, sizes: Sizes) -> AsyncIterator[Row]:
    """Streams at a pace and flat out."""
    tokens = sizes.tokens
    for delay in sizes.delays_ms:
        for clients in sizes.streams:
            yield await scenarios.stream(site, clients=clients, delay_ms=delay, tokens=tokens)
    for clients, delay in sizes.single_events:
        yield await scenarios.stream(site, clients=clients, delay_ms=delay, tokens=tokens, each=4)
    for api in ("chat", "responses"):
        at = replace(site, api=APIS[api])
        for clients, delay in sizes.side_streams:
            each = 1 if delay else 4
            yield await scenarios.stream(
                at, clients=clients, delay_ms=delay, tokens=tokens, each=each
            )


async def dispatch(site: Site, sizes: Sizes) -> AsyncIterator[Row]:
    """How late a complete call is while the model goes on, on the three APIs."""
    for api in APIS.values():
        for script in sizes.dispatch_scripts:
            rows = await scenarios.dispatch(
                replace(site, api=api),
                script,
                clients=sizes.dispatch_clients,
                each=sizes.dispatch_each,
                tokens=200,
                delay_ms=10.0,
            )
            for row in rows:
                yield row


async def prompt_capacity(site: Site, sizes: Sizes, *, kind: Kind) -> AsyncIterator[Row]:
    """How many long prompts a side serves, and how fast, by the number of clients."""
    async for row in capacity.prompts(site, kind, sizes.prompt_loads, sizes.capacity_limit_s):
        yield row


async def session_capacity(site: Site, sizes: Sizes, *, turn: int) -> AsyncIterator[Row]:
    """How many turns of agents' sessions a side serves, and how fast, by the number of clients."""
    loads = sizes.session_loads if turn < LATE else sizes.late_loads
    async for row in capacity.turns(site, turn, loads, sizes.session_turns, sizes.capacity_limit_s):
        yield row


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
