"""Reads lists from TensorRT-LLM, on a thread or on the event loop.

Its calls block for seconds, or forever if the engine is dead. Releases that send statistics through
queues have asynchronous iterators, which end at the first timeout; see `releases.toml`.
"""

import asyncio
import threading
from collections.abc import AsyncIterable, Callable
from typing import Any, TypeAlias

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
