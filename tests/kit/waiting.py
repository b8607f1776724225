"""Waiting for events: with a generous limit, never for a short time."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

LIMIT_S = 60.0
"""How long a test waits for an event before it fails."""
ENGINE_LIMIT_S = 1800.0
"""How long for everything that waits for an engine, which starts in minutes on a busy CPU."""


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


def gone(pid: int) -> bool:
    """Whether a process has ended; its parent may not have waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def until_gone(*pids: int, timeout_s: float = LIMIT_S) -> None:
    """Polls, since only a parent can wait for a process."""
    await eventually(lambda: all(map(gone, pids)), timeout_s)
