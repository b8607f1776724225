"""Log lines on their way into a stream: at once while they are few, together while they are many.

Each write to a pipe wakes whoever reads it. A frontend says a line for every request, and woke `turnwire up` for each:
0.1 to 0.2 ms of CPU a request, on another core.
"""

import asyncio
import atexit
import threading
import time
from typing import TextIO

EVERY_S = 0.05
"""Ordinary lines are written so often at most; where the process is killed, so much of them may be lost."""


class LineWriter:
    """What structlog calls with each rendered line. Thread-safe. Lines keep their order; one of level warning or above
    goes out at once, with all before it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._last = -EVERY_S
        self._timer: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        atexit.register(self._late)

    def info(self, line: str) -> None:
        """An ordinary line."""
        with self._lock:
            self._lines.append(line)
            if self._timer is not None:
                return
            wait = self._last + EVERY_S - time.monotonic()
            loop = _running_loop() if wait > 0 else None
            if loop is not None:
                self._timer = loop.call_later(wait, self._late)
                return
            self._write()

    def warning(self, line: str) -> None:
        """A line that must not be lost."""
        with self._lock:
            self._lines.append(line)
            self._write()

    debug = msg = info
    error = critical = exception = fatal = warn = warning

    def _late(self) -> None:
        with self._lock:
            self._timer = None
            try:
                self._write()
            except (OSError, ValueError):
                pass  # nobody reads any more, and whoever said the lines is not there to hear of it

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        if not lines:
            return
        self._last = time.monotonic()
        self._stream.write("\n".join(lines) + "\n")
        self._stream.flush()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
