"""Remembers the turns that a process has cancelled or finished, because messages about them may
still arrive."""

import asyncio

from cachetools import Cache, LRUCache, TTLCache

MAX_TURNS = 16_384


class RecentTurns:
    """Turns by id, with the newest noted attempt of each. Beyond `MAX_TURNS` the oldest ones are
    dropped."""

    def __init__(self, for_s: float | None = None) -> None:
        """`for_s`: seconds after which a turn is dropped; None: only the number of turns counts."""
        self._attempts: Cache[str, int] = LRUCache(MAX_TURNS)
        if for_s is not None:
            self._attempts = TTLCache(MAX_TURNS, for_s, asyncio.get_running_loop().time)

    def note(self, turn: str, attempt: int) -> None:
        """Notes an attempt at a turn, and with it all earlier ones."""
        self._attempts[turn] = max(attempt, self.attempt(turn))

    def attempt(self, turn: str) -> int:
        """The newest attempt that was noted; 0 for a turn without one."""
        return self._attempts.get(turn, 0)

    def __contains__(self, turn: str) -> bool:
        return turn in self._attempts
