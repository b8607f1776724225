"""Caches the results for parts of requests that clients repeat: tools and long instructions, by
their JSON.

An agent sends the same tools and instructions with every request. Finding 20 tools (62 KB of JSON)
takes 6 us; decoding them and making their specs takes 70 us, and writing them for the chat template
440 us. (`ConversationLimits` checks the depth of their schemas again for every request, in 40 us.)
All open turns of a session share the results.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from cachetools import LRUCache
from xxhash import xxh3_64_intdigest

MAX_SIZE = 12 * 1024 * 1024
"""Bytes of JSON and characters of text that one cache holds: the tools and instructions of some 50
agents."""
MIN_SIZE = 256
"""A smaller part is not cached: decoding it is as fast as finding it."""

T = TypeVar("T")
D = TypeVar("D", bytes, str)


class Memo(Generic[T]):
    """Results by the JSON or text of a part. Thread-safe; the least recently used are dropped.
    Values are immutable."""

    def __init__(self, max_size: int = MAX_SIZE) -> None:
        """`max_size`: bytes and characters; 0: nothing is cached."""
        self._largest = max_size // 4
        self._entries: LRUCache[int, tuple[bytes | str, T]] = LRUCache(
            max_size, lambda entry: len(entry[0])
        )
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """The bytes and characters of all parts."""
        return int(self._entries.currsize)

    def get(self, part: D, make: Callable[[D], T]) -> T:
        """The result of `make` for a part, from the cache if possible. Raises as `make`."""
        if not MIN_SIZE <= len(part) <= self._largest:
            return make(part)
        key = xxh3_64_intdigest(part.encode() if isinstance(part, str) else part)
        with self._lock:
            entry = self._entries.get(key)
        if entry is not None and entry[0] == part:  # the hash is not collision-resistant
            return entry[1]
        result = make(part)
        with self._lock:
            self._entries[key] = part, result
        return result
