"""Polls TensorRT-LLM for statistics, KV events and health, on threads.

Its calls block, for seconds or, with a dead engine, for ever; its asynchronous iterators end at the first time-out.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

from services.worker.engine import CacheCleared, KvEvent

MAX_EVENTS = 65_536
MAX_ERRORS = 10
"""In a row, after which polling ends: there is nothing to read from this engine."""


class Poller:
    """Calls `poll` on a daemon thread, and `deliver` on the event loop with each result that is not empty."""

    def __init__(self, name: str, poll: Callable[[], Any], deliver: Callable[[Any], None], interval_s: float) -> None:
        self._poll = poll
        self._deliver = deliver
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends polling; a poll that is under way may still return."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        """Waits for the poll that is under way."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        errors = 0
        while not self._stop.is_set() and errors < MAX_ERRORS:
            try:
                result = self._poll()
            except Exception:
                errors += 1  # raised before the first request, and in some states between two
            else:
                errors = 0
                if result and not self._stop.is_set():
                    try:
                        self._loop.call_soon_threadsafe(self._deliver, result)
                    except RuntimeError:
                        return  # the loop is closed
            self._stop.wait(self._interval_s)


class KvEventQueue:
    """KV events on their way to one reader. One that is too slow gets a `CacheCleared` in place of lost events."""

    def __init__(self) -> None:
        self._events: deque[KvEvent] = deque()
        self._arrived = asyncio.Event()
        self._closed = False

    def put(self, events: list[KvEvent]) -> None:
        """Adds events."""
        self._events.extend(events)
        if len(self._events) > MAX_EVENTS:
            self._events.clear()
            self._events.append(CacheCleared())
        self._arrived.set()

    def close(self) -> None:
        """No more events will come."""
        self._closed = True
        self._arrived.set()

    async def read(self) -> AsyncGenerator[KvEvent, None]:
        """The events, until `close`."""
        while not (self._closed and not self._events):
            if not self._events:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            yield self._events.popleft()
