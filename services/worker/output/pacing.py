"""Decides when a step's tokens go out: at once, or a millisecond later with those of the next
steps.

The steps of a model that takes 10 ms for each are sent at the end of their tick. A faster engine (a
small model, a script without delay, a step with results in several ticks) would cause a frame, an
event and a write for each token. Therefore frames of ordinary steps to one shard are `gap_s` apart.
The first tokens of a turn and its end never wait.
"""

import asyncio
import time

from services.runtime.streams.frames import FrameSender


class Pacer:
    """Schedules the frames to each shard."""

    def __init__(self, gap_s: float, sender: FrameSender, loop: asyncio.AbstractEventLoop) -> None:
        """`gap_s`: least time between two frames with ordinary steps to one shard."""
        self._gap_s = gap_s
        self._sender = sender
        self._loop = loop
        self._last: dict[str, float] = {}
        self._waiting: set[str] = set()

    def send_now(self, parser: str) -> None:
        """Sends what must not wait at the end of this tick."""
        if not self._sender.is_scheduled(parser):
            self._last[parser] = time.monotonic()
            self._sender.schedule(parser)

    def send_soon(self, parser: str) -> None:
        """Sends a step's tokens, `gap_s` after the last ones at the earliest."""
        if self._sender.is_scheduled(parser):
            return
        now = time.monotonic()
        if now - self._last.get(parser, 0.0) >= self._gap_s:
            self._last[parser] = now
            self._sender.schedule(parser)
        elif parser not in self._waiting:
            self._waiting.add(parser)
            self._loop.call_later(self._gap_s, self._release, parser)

    def forget(self, parser: str) -> None:
        """Drops the state of a shard that is gone."""
        self._last.pop(parser, None)
        self._waiting.discard(parser)

    def _release(self, parser: str) -> None:
        if parser in self._waiting:
            self._waiting.discard(parser)
            self.send_soon(parser)
