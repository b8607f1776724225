"""Computes prompts one after the other, with the time that prefill takes."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PrefillQueue(Generic[T]):
    """Calls `done(item)` for each item when its prompt is computed. Only the first one is computed;
    one that is removed leaves its time to the others."""

    def __init__(self, done: Callable[[T], None]) -> None:
        self._done = done
        self._seconds: dict[T, float] = {}
        """What each prompt takes, in order."""
        self._timer: asyncio.TimerHandle | None = None
        """Ends the first prompt's time."""
        self._paused = False

    def add(self, item: T, seconds: float) -> None:
        """Computes a prompt after those that are there."""
        self._seconds[item] = seconds
        if self._timer is None:
            self._compute_next()

    def remove(self, item: T) -> None:
        """Computes this prompt no further, if it is not done."""
        is_first = next(iter(self._seconds), None) == item
        self._seconds.pop(item, None)
        if is_first:
            self.stop()
            self._compute_next()

    def stop(self) -> None:
        """Computes nothing for now."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def pause(self) -> None:
        """Computes nothing until `resume`."""
        self._paused = True
        self.stop()

    def resume(self) -> None:
        """Computes the first prompt from its start."""
        self._paused = False
        self._compute_next()

    def _compute_next(self) -> None:
        if self._paused:
            return
        for item, seconds in self._seconds.items():
            self._timer = asyncio.get_running_loop().call_later(seconds, self._finish, item)
            return

    def _finish(self, item: T) -> None:
        self._timer = None
        del self._seconds[item]
        self._compute_next()
        self._done(item)
