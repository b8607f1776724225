"""Makes load in two ways. Closed loop: a number of clients, each with one request at a time. Open
loop: requests are sent at planned times, however slow the answers are, and their latencies count
from these times.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from bench.client import Client
from bench.exchange import Exchange

Arrivals: TypeAlias = Literal["poisson", "even"]
MakeBody: TypeAlias = Callable[[int], bytes]
"""The body of the n-th request."""


def arrival_plan(
    rate_per_s: float, duration_s: float, arrivals: Arrivals, seed: int = 0
) -> list[int]:
    """Returns when requests are due, in ns from the start. Equal for equal arguments. Pure.

    `poisson`: as from many independent users; `even`: at equal intervals.
    """
    end = duration_s * 1e9
    mean = 1e9 / rate_per_s
    source = random.Random(seed)
    plan = []
    at = 0.0
    while at < end:
        plan.append(int(at))
        at += source.expovariate(1) * mean if arrivals == "poisson" else mean
    return plan


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


async def open_loop(client: Client, body: MakeBody, plan: list[int]) -> list[Exchange]:
    """Sends a request for each entry of the plan when it is due, whether or not others were
    answered."""
    loop = asyncio.get_running_loop()
    start = time.monotonic_ns()
    sending: list[asyncio.Task[Exchange]] = []
    for number, offset in enumerate(plan):
        request = body(number)
        wait_s = (start + offset - time.monotonic_ns()) / 1e9
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        sending.append(loop.create_task(client.exchange(request, due=start + offset)))
    return list(await asyncio.gather(*sending))
