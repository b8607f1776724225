"""Decides from a process's own heartbeats, which the bus returns to it, whether it is cut off."""

import asyncio
from collections import deque
from typing import NamedTuple

from services.runtime.config.service import BusConfig

MAX_UNDER_WAY = 256
"""The number of own heartbeats that may be under way: those of some minutes."""


class ReturnedHeartbeat(NamedTuple):
    """An own heartbeat that came back."""

    sent_at: float
    gap_s: float
    """The time since the one before it came back."""
    after_cut: bool
    """The gap was so long that the process was cut off."""


class Liveness:
    """The own heartbeats of one process. Times are those of the event loop, in seconds."""

    def __init__(self, config: BusConfig) -> None:
        self._limit_s = max(
            config.dead_after_s - config.beat_interval_s, 2 * config.beat_interval_s
        )
        self._under_way: deque[tuple[int, float]] = deque(maxlen=MAX_UNDER_WAY)
        """(number, time) of own heartbeats that did not come back yet."""
        self._returned = self._returned_at = 0.0
        """When the newest own heartbeat that came back was sent, and when the last one came
        back."""
        self._resumed_at = 0.0
        """When the first own heartbeat came back after a gap."""
        self.came_back = asyncio.Event()
        """Set and cleared when an own heartbeat comes back."""

    def begin(self, now: float) -> None:
        """Notes that the first heartbeat is about to be sent."""
        self._returned = self._returned_at = now

    def record_sent(self, number: int, now: float) -> None:
        """Notes a heartbeat that was sent."""
        self._under_way.append((number, now))

    def forget_sent(self) -> None:
        """Forgets what is under way, because the connection it was sent on is gone."""
        self._under_way.clear()

    def receive(self, number: int, now: float) -> ReturnedHeartbeat | None:
        """Notes an own heartbeat that came back, which proves that the bus worked when it was sent.
        Returns None if it was sent on an earlier connection."""
        sent_at = None
        while self._under_way and self._under_way[0][0] <= number:
            sent_at = self._under_way.popleft()[1]
        if sent_at is None:
            return None
        gap_s = now - self._returned_at
        after_cut = gap_s > self._limit_s
        if after_cut:
            self._resumed_at = now
        self._returned = sent_at
        self._returned_at = now
        self.came_back.set()
        self.came_back.clear()
        return ReturnedHeartbeat(sent_at, gap_s, after_cut)

    def silent(self, now: float) -> bool:
        """Whether own heartbeats do not come back, or only those from before a gap."""
        return self._returned < self._resumed_at or now - self._returned > self._limit_s
