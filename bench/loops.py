"""Makes load in a closed loop: a number of clients, each with one request at a time."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import TypeAlias

from bench.client import Client
from bench.exchange import Exchange

MakeBody: TypeAlias = Callable[[int], bytes]
"""The body of the n-th request."""


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
