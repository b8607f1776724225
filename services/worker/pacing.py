"""Decides when a step's tokens go out: at once, or a millisecond later with those of the next steps.

A model that takes 10 ms for a step has each step sent at the end of its tick. An engine that steps faster than frames
are worth (a small model, a step whose results arrive in several ticks, a script without delay) would cause a frame, an
event and a write for each token; instead, frames of ordinary steps to one shard are `gap_s` apart. The first tokens of
a turn and its end never wait.
"""

import asyncio
import time
from collections.abc import Callable


class Pacer:
    """Marks shards for draining, each in its own rhythm."""

    def __init__(
        self,
        gap_s: float,
        *,
        marked: Callable[[str], bool],
        mark: Callable[[str], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """
        Args:
            marked: whether a shard is drained at the end of this tick anyway.
            mark: drain a shard at the end of this tick.
        """
        self._gap_s = gap_s
        self._marked = marked
        self._mark = mark
        self._loop = loop
        self._last: dict[str, float] = {}
        self._held: set[str] = set()

    def now(self, parser: str) -> None:
        """Sends something that does not wait."""
        if not self._marked(parser):
            self._last[parser] = time.monotonic()
            self._mark(parser)

    def soon(self, parser: str) -> None:
        """Sends a step's tokens."""
        if self._marked(parser):
            return
        now = time.monotonic()
        if now - self._last.get(parser, 0.0) >= self._gap_s:
            self._last[parser] = now
            self._mark(parser)
        elif parser not in self._held:
            self._held.add(parser)
            self._loop.call_later(self._gap_s, self._release, parser)

    def forget(self, parser: str) -> None:
        """Drops the state of a shard that is gone."""
        self._last.pop(parser, None)
        self._held.discard(parser)

    def _release(self, parser: str) -> None:
        if parser in self._held:
            self._held.discard(parser)
            self.soon(parser)
