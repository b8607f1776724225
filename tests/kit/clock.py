"""Clocks that a test sets: one that objects read, and that of an event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.kit.waiting import LIMIT_S


class Clock:
    """A clock that stands still until a test sets it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class LoopClock:
    """`asyncio.get_running_loop().time()` and all timers of the loop are `passed` seconds ahead."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.passed = 0.0
        self._loop = loop
        self._time = loop.time
        loop.time = self.time  # type: ignore[method-assign]

    def time(self) -> float:
        return self._time() + self.passed

    async def until(self, condition: Callable[[], bool]) -> None:
        """Lets time pass until a condition is true; `LIMIT_S` real seconds at most."""
        end = self._time() + LIMIT_S
        while not condition():
            assert self._time() < end
            self.passed += 0.05
            await asyncio.sleep(0)

    def close(self) -> None:
        self._loop.time = self._time  # type: ignore[method-assign]


@pytest.fixture
async def loop_clock() -> AsyncIterator[LoopClock]:
    clock = LoopClock(asyncio.get_running_loop())
    yield clock
    clock.close()
