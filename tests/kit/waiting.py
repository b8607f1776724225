"""Waiting for events: with a generous limit, never for a short time."""

import asyncio
from collections.abc import Awaitable, Callable

LIMIT_S = 60.0
"""How long a test waits for an event before it fails."""


async def eventually(condition: Callable[[], bool], timeout_s: float = LIMIT_S) -> None:
    """Waits until a condition is true; the loop runs on meanwhile."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def until(check: Callable[[], Awaitable[object]], timeout_s: float = LIMIT_S) -> None:
    """Waits until `check`, which is called again and again, returns a true value."""
    async with asyncio.timeout(timeout_s):
        while not await check():
            await asyncio.sleep(0.02)
