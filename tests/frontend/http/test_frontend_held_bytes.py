"""What waits in a frontend is bounded in bytes: for all callers together, for each, and for each
connection."""

import asyncio
import gzip
import json
import random

from services.frontend.app import BODIES_HELD
from services.frontend.http import bodies
from services.frontend.http.held_bytes import HeldBytes
from services.runtime.config import FrontendConfig
from tests.kit.frontend import ASK, serving


async def test_no_more_is_held_than_the_limits_of_part_and_whole() -> None:
    """Random sizes, holding times and hang-ups: the limits hold, and all that may get room does."""
    draw = random.Random(7)
    whole = HeldBytes(1000)
    parts = [HeldBytes(600, within=whole) for _ in range(3)]
    most = 0.0
    entered = 0

    async def hold(part: HeldBytes, size: int) -> None:
        nonlocal most, entered
        async with part.wait_for(size):
            entered += 1
            most = max(most, whole.held, *(part.held / 0.6 for part in parts))
            for _ in range(draw.randrange(5)):
                await asyncio.sleep(0)

    tasks = [
        asyncio.create_task(hold(draw.choice(parts), draw.randrange(1, 600))) for _ in range(500)
    ]
    hung_up = tasks[::7]
    for task in hung_up:
        await asyncio.sleep(0)
        task.cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert 900 < most <= 1000
    assert entered >= len(tasks) - len(hung_up)
    assert [whole.held, *(part.held for part in parts)] == [0, 0, 0, 0]


async def test_large_bodies_wait_for_each_other_and_small_ones_do_not() -> None:
    """Each bomb counts as the largest body while it is unpacked."""
    body = json.dumps({**ASK, "system": " " * (2 * bodies.UNCOUNTED_BYTES)}).encode()
    headers = {"content-encoding": "gzip"}
    config = FrontendConfig(max_body_bytes=4 * bodies.UNCOUNTED_BYTES)
    async with serving(config=config) as served:
        held = served.callers.caller_of("").held
        assert held.limit == config.max_body_bytes * BODIES_HELD // 2
        async with held.wait_for(held.limit):
            waiting = [
                asyncio.create_task(served.send("POST", "/v1/messages", data=data, headers=extra))
                for data, extra in ((body, {}), (gzip.compress(body), headers))
            ]
            assert (await served.ask()).status == 200
            assert not any(task.done() for task in waiting)
        assert [reply.status for reply in await asyncio.gather(*waiting)] == [200, 200]
        assert held.held == 0
