"""Ends the process when TensorRT-LLM blocks its event loop."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

GUARD_INTERVAL_S = 1.0


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
