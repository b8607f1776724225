"""Flushes streams at the end of a tick of the event loop, with one write each.

A frame of the bus has a token for every stream of its parser, and one read may bring several
frames. A stream's events of a tick are merged and sent in one system call, and all writes follow
each other, so that a client that the first one woke is still awake at the last. With 64 streams of
100 tokens a second (uvloop, client in another process) a token costs 12.0 us; rendering and writing
one stream after the other costs 13.3.
"""

import asyncio
from abc import ABC, abstractmethod

from services.runtime.observability.telemetry import FilteringBoundLogger


class FlushedStream(ABC):
    """A stream that renders and sends what arrived in a tick."""

    @abstractmethod
    def render_pending(self, now: float) -> None:
        """Renders the pending events. `now`: the loop's time."""

    @abstractmethod
    def send(self, now: float) -> None:
        """Writes the rendered bytes. Called when all streams of the tick are rendered."""


class Flusher:
    """Flushes all streams of a loop."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self.log = log
        self._due: list[FlushedStream] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, stream: FlushedStream) -> None:
        """Flushes a stream at the end of this tick. Must not be called again before the stream's
        `render_pending`."""
        if not self._due:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._flush, self._loop)
        self._due.append(stream)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        due = self._due
        self._due = []
        now = loop.time()
        for stream in due:
            try:
                stream.render_pending(now)
            except Exception:  # one stream's failure must not affect the others
                self.log.exception("stream.render_failed")
        for stream in due:
            try:
                stream.send(now)
            except Exception:
                self.log.exception("stream.send_failed")
