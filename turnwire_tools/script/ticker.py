"""Times engine steps: everything that is due at one moment is stepped together."""

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

NOW = 0
"""A time of a step that is due in the loop's next turn."""
_LATE_US = 1000
"""uvloop's timers count whole milliseconds from the beginning of the loop's turn, and may fire too
early by this."""


def now_us() -> int:
    """Microseconds of the monotonic clock."""
    return time.monotonic_ns() // 1000


def aligned(after_us: int, period_us: int) -> int:
    """The first multiple of `period_us` after `after_us`: streams of one pace step together,
    whenever they began."""
    return (after_us // period_us + 1) * period_us if period_us else after_us


class Ticker(Generic[T]):
    """Calls `step(item, now_us)` for each item when it is due; `step` returns when the item is due
    again, or None.

    One timer serves all items that are due at one moment. Items without a delay are stepped once
    per turn of the loop, without a timer, so that the loop's other work runs between two steps.
    """

    def __init__(self, step: Callable[[T, int], int | None]) -> None:
        self._step = step
        self._due: dict[int, list[T]] = {}

    def add(self, item: T, at_us: int = NOW) -> None:
        """Steps `item` at `at_us`."""
        self._bucket(at_us).append(item)

    def stop(self) -> None:
        """Drops all items."""
        self._due.clear()

    def take_all(self) -> list[T]:
        """Takes out all items, in the order in which they are due."""
        items = [item for at_us in sorted(self._due) for item in self._due[at_us]]
        self._due.clear()
        return items

    def _bucket(self, at_us: int) -> list[T]:
        """The items that are due at a moment; a timer is set with the first one."""
        bucket = self._due.get(at_us)
        if bucket is not None:
            return bucket
        bucket = self._due[at_us] = []
        loop = asyncio.get_running_loop()
        if at_us == NOW:
            loop.call_soon(self._tick, at_us)
        else:
            wait_us = max(0, at_us - now_us() + _LATE_US)
            loop.call_later(wait_us / 1e6, self._tick, at_us)
        return bucket

    def _tick(self, at_us: int) -> None:
        now = max(at_us, now_us())
        step = self._step
        latest = -1
        bucket: list[T] = []
        for item in self._due.pop(at_us, ()):
            again = step(item, now)
            if again is None:
                continue
            if again != latest:  # nearly always they are due together again
                latest = again
                bucket = self._bucket(again)
            bucket.append(item)
