"""A cache with several values under one key, for things that begin alike, such as the prompts of
one session."""

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from cachetools import LRUCache

BRANCHES = 8
"""Default of the most values under one key."""

V = TypeVar("V")


class BranchCache(Generic[V]):
    """Keeps a few values under each key, within a bound in bytes. Thread-safe.

    The least recently used key is evicted first, and the least recently used value of a key.
    """

    def __init__(
        self, max_bytes: int, size_of: Callable[[V], int], branches: int = BRANCHES
    ) -> None:
        """`size_of`: returns the bytes of a value; `branches`: most values under one key."""
        self._max_bytes = max_bytes
        self._branches = branches
        self._size_of = size_of
        self._values: LRUCache[Hashable, list[V]] = LRUCache(
            max_bytes, lambda values: sum(map(size_of, values))
        )
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """The bytes of all values."""
        return int(self._values.currsize)

    def get(self, key: Hashable) -> list[V]:
        """The values of a key, the last used first."""
        with self._lock:
            return list(self._values.get(key, ()))

    def put(self, key: Hashable, value: V, *, instead_of: V | None = None) -> None:
        """Adds a value, which replaces `instead_of`, or moves an existing one to the front."""
        with self._lock:
            former = self._values.get(key, [])
            if former and former[0] is value:
                return
            values = [
                value,
                *(other for other in former if other is not value and other is not instead_of),
            ]
            del values[self._branches :]
            while sum(map(self._size_of, values)) > self._max_bytes:
                values.pop()
            self._values.pop(key, None)
            if values:
                self._values[key] = values

    def clear(self) -> None:
        """Removes everything."""
        with self._lock:
            self._values.clear()
