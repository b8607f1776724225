"""Reads statistics, KV events and health from TensorRT-LLM, and detects an event loop that it
blocks.

Its calls block for seconds, or forever if the engine is dead. Releases that send statistics through
queues have asynchronous iterators, which end at the first timeout; see `releases.toml`.
"""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from typing import Any, TypeAlias

from services.worker.kv_events import CacheCleared, KvEvent

MAX_EVENTS = 65_536
GUARD_INTERVAL_S = 1.0
MAX_ERRORS = 10
"""Consecutive errors after which reading ends."""


Deliver: TypeAlias = Callable[[Any], None]
"""Takes what was read. Called on the event loop."""


class Follower:
    """Reads an asynchronous iterator on the event loop, and opens it again `interval_s` after its
    end."""

    def __init__(
        self, follow: Callable[[], AsyncIterable[Any]], deliver: Deliver, interval_s: float
    ) -> None:
        self._follow = follow
        self._deliver = deliver
        self._interval_s = interval_s
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Stops reading."""
        self._task.cancel()

    def join(self, timeout_s: float) -> None:
        """Returns at once: no call is under way."""

    async def _run(self) -> None:
        errors = 0
        while errors < MAX_ERRORS:
            try:
                async for item in self._follow():
                    errors = 0
                    self._deliver(item if isinstance(item, list) else [item])
            except Exception:
                errors += 1  # raised before the first request, and in some states between two
            await asyncio.sleep(self._interval_s)


class LoopGuard:
    """Ends the process when the event loop has not run for `limit_s`.

    Up to 1.3.0rc23 an iterator that finds the worker dead shuts down the library within the call,
    which may never return (#16312). Nothing on the loop could report that.
    """

    def __init__(self, limit_s: float, leave: Callable[[int], Any] = os._exit) -> None:
        self._limit_s = limit_s
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._ran = threading.Event()
        self._stop = threading.Event()
        threading.Thread(target=self._run, name="trtllm-guard", daemon=True).start()

    def stop(self) -> None:
        """Stops watching."""
        self._stop.set()
        self._ran.set()

    def _run(self) -> None:
        silent_s = 0.0
        while not self._stop.is_set():
            self._ran.clear()
            try:
                self._loop.call_soon_threadsafe(self._ran.set)
            except RuntimeError:
                return  # the loop is closed
            # Short waits, so that a suspension of the whole process counts as one of them.
            silent_s = 0.0 if self._ran.wait(GUARD_INTERVAL_S) else silent_s + GUARD_INTERVAL_S
            if silent_s >= self._limit_s:
                print(
                    f"TensorRT-LLM has blocked the worker for {silent_s:.0f} s: it is dead",
                    file=sys.stderr,
                )
                self._leave(1)
                return
            self._stop.wait(GUARD_INTERVAL_S if silent_s == 0.0 else 0.0)


class Poller:
    """Calls `poll` on a daemon thread, and `deliver` on the event loop with each result that is not
    empty."""

    def __init__(
        self, name: str, poll: Callable[[], Any], deliver: Deliver, interval_s: float
    ) -> None:
        self._poll = poll
        self._deliver = deliver
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops reading; a call that is under way may still return."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        """Waits for the call that is under way."""
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
                if result and not self._stop.is_set() and not self._pass_on(result):
                    return
            self._stop.wait(self._interval_s)

    def _pass_on(self, result: Any) -> bool:
        """Returns False if the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, result)
        except RuntimeError:
            return False
        return True


class KvEventQueue:
    """A queue of KV events for one reader. A reader that is too slow gets a `CacheCleared` in place
    of lost events."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[KvEvent | None] = asyncio.Queue()

    def put(self, events: list[KvEvent]) -> None:
        """Adds events."""
        if self._events.qsize() + len(events) > MAX_EVENTS:
            while not self._events.empty():
                self._events.get_nowait()
            events = [CacheCleared()]
        for event in events:
            self._events.put_nowait(event)

    def close(self) -> None:
        """Ends `read`."""
        self._events.put_nowait(None)

    async def read(self) -> AsyncGenerator[KvEvent, None]:
        """Yields the events until `close`."""
        event = await self._events.get()
        while event is not None:
            yield event
            event = await self._events.get()
