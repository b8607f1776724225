"""Times engine steps: everything that is due at one moment is stepped together."""

import asyncio
import heapq
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

NOW = 0
"""As the time of the next step: in the loop's next turn."""
_LATE_US = 1000
"""uvloop's timers count whole milliseconds from the beginning of the loop's turn, and may fire so much too early; each
that does wakes the process once more."""


def now_us() -> int:
    """Microseconds of the monotonic clock."""
    return time.monotonic_ns() // 1000


def aligned(after_us: int, period_us: int) -> int:
    """The first multiple of `period_us` behind `after_us`: streams of one pace step together, whenever they began."""
    return (after_us // period_us + 1) * period_us if period_us else after_us


class Ticker(Generic[T]):
    """Calls `step(item, now_us)` for each item when it is due; `step` returns when the item is due again, or None.

    One timer serves all items. Items without a delay are stepped once per turn of the loop, without a timer, so that
    the loop's other work runs between two steps.
    """

    def __init__(self, step: Callable[[T, int], int | None]) -> None:
        self._step = step
        self._flat: list[T] = []
        self._due: dict[int, list[T]] = {}
        self._times: list[int] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.Handle | None = None
        self._armed_for = NOW

    def add(self, item: T, at_us: int = NOW) -> None:
        """Steps `item` at `at_us`."""
        self._bucket(at_us).append(item)
        self._arm()

    def stop(self) -> None:
        """Drops all items."""
        self._flat.clear()
        self._due.clear()
        self._times.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _bucket(self, at_us: int) -> list[T]:
        if at_us == NOW:
            return self._flat
        bucket = self._due.get(at_us)
        if bucket is None:
            bucket = self._due[at_us] = []
            heapq.heappush(self._times, at_us)
        return bucket

    def _arm(self) -> None:
        next_us = NOW if self._flat else self._times[0] if self._times else None
        if self._handle is not None:
            if next_us is not None and self._armed_for <= next_us:
                return
            self._handle.cancel()
            self._handle = None
        if next_us is None:
            return
        loop = self._loop = self._loop or asyncio.get_running_loop()
        self._armed_for = next_us
        if next_us == NOW:
            self._handle = loop.call_soon(self._tick)
        else:
            self._handle = loop.call_later(max(0, next_us - now_us() + _LATE_US) / 1e6, self._tick)

    def _tick(self) -> None:
        self._handle = None
        items, self._flat = self._flat, []
        now = now_us()
        while self._times and self._times[0] <= now:
            items += self._due.pop(heapq.heappop(self._times))
        step, latest, bucket = self._step, NOW, self._flat
        for item in items:
            again = step(item, now)
            if again is None:
                continue
            if again != latest:  # nearly always they are due together again
                latest, bucket = again, self._bucket(again)
            bucket.append(item)
        self._arm()
