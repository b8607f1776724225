"""Measures capacity: concurrent agents, each with one request of 52,000 tokens at a time, on a
fresh connection."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TypeAlias

from bench.client import Client
from bench.exchange import Exchange
from bench.measuring import Site, measured
from bench.prompts import SHORT_ANSWER, SHORT_PLAY, Kind, make_body
from bench.rows import Case, Row
from bench.sessions import AgentSession

PROMPTS: dict[Kind, str] = {"tail": "known prefix", "fresh": "all of it new"}
WARMING = 4
"""Requests before each case that are not measured."""
PLAYERS = 16
"""Clients that play the sessions up to the measured turn."""
PLAY_LIMIT_S = 240.0

Loads = Sequence[tuple[int, int]]
"""Number of clients, and of the requests or sessions of all clients together."""
MakeBody: TypeAlias = Callable[[int], bytes]
"""The body of the n-th request."""


async def prompts(site: Site, kind: Kind, loads: Loads, limit_s: float) -> AsyncIterator[Row]:
    """Measures requests of one kind: all of a prompt but its end is known (`tail`), or nothing
    (`fresh`)."""
    seed = site.seed
    for clients, requests in loads:
        case = Case(
            "capacity",
            site.api.name,
            "fresh",
            prompt=PROMPTS[kind],
            clients=clients,
            tokens=SHORT_ANSWER,
        )
        make = make_body(site.api, site.model, size="large", kind=kind, play=SHORT_PLAY, seed=seed)
        # Made in advance: 6 ms each for a new text.
        bodies = [make(number) for number in range(WARMING + requests)]
        if kind == "fresh":
            seed += len(bodies)
        client = site.client("fresh")
        await closed_loop(client, bodies.__getitem__, 1, WARMING)
        measure = partial(
            closed_loop, client, bodies[WARMING:].__getitem__, clients, requests // clients
        )
        yield await measured(site, case, partial(measure, limit_s=limit_s))


async def turns(
    site: Site, turn: int, loads: Loads, each: int, limit_s: float
) -> AsyncIterator[Row]:
    """Measures sessions from `turn` on, `each` turns of every session.

    Their earlier turns are played first. Each case continues the sessions from there again, with
    other tool results.

    Raises ValueError, or a group of it, if a session does not reach `turn`; TimeoutError if that
    takes too long.
    """
    client = site.client("fresh")
    count = max(sessions for _, sessions in loads)
    begun = [AgentSession.begin(site.model, site.seed + number, turn) for number in range(count)]
    async with asyncio.timeout(PLAY_LIMIT_S):
        played = await session_loop(client, begun, PLAYERS, turn - 1)
    if failed := next((one.error for one in played if not one.finished), None):
        raise ValueError(f"a session before turn {turn}: {failed}")
    for clients, sessions in loads:
        case = Case(
            "capacity", site.api.name, "fresh", prompt=f"session at turn {turn}", clients=clients
        )
        forks = [
            session.fork(site.seed + 100 * clients + at)
            for at, session in enumerate(begun[:sessions])
        ]
        yield await measured(
            site, case, partial(session_loop, client, forks, clients, each, limit_s=limit_s)
        )


async def session_loop(
    client: Client,
    sessions: Sequence[AgentSession],
    clients: int,
    turns: int,
    *,
    limit_s: float = math.inf,
) -> list[Exchange]:
    """Plays `turns` turns of every session. Each of `clients` has a share of the sessions, one
    after the other.

    After `limit_s` no turn starts. A failed turn ends its session. Raises ExceptionGroup of
    ValueError for an answer without a call.
    """
    end = time.monotonic() + limit_s

    async def one(share: Sequence[AgentSession]) -> list[Exchange]:
        found: list[Exchange] = []
        for session in share:
            for _ in range(turns):
                if time.monotonic() > end:
                    return found
                exchange = await client.exchange(session.body(), keep=True)
                found.append(exchange)
                if not exchange.finished:
                    break
                session.take(exchange.each())
        return found

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(sessions[at::clients])) for at in range(clients)]
    return [exchange for task in running for exchange in task.result()]


async def closed_loop(
    client: Client,
    body: MakeBody,
    clients: int,
    each: int,
    *,
    ramp_s: float = 0.0,
    keep: bool = False,
    limit_s: float = math.inf,
) -> list[Exchange]:
    """Runs `clients` at once, each with `each` requests one after the other. Answers are in the
    order of the requests.

    `ramp_s`: time over which the clients start. `keep`: keep every event, with its time. After
    `limit_s` no request starts.
    """
    await client.warm(clients)
    end = time.monotonic() + limit_s

    async def one(number: int) -> list[Exchange]:
        if ramp_s:
            await asyncio.sleep(ramp_s * number / clients)
        return [
            await client.exchange(body(number * each + turn), keep=keep)
            for turn in range(each)
            if time.monotonic() < end
        ]

    found = await asyncio.gather(*(one(number) for number in range(clients)))
    return [exchange for some in found for exchange in some]
