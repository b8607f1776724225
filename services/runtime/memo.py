"""Remembers what was made of parts of a request that clients repeat: tools and long instructions, by their JSON.

An agent sends the same tools and instructions with every request. To find 20 tools again (62 KB of JSON) takes 6 us; to
decode them, make their specs and check their depth takes 250 us, and to write them for the chat template 440 us. All
open turns of a session share what is found: with one copy of the instructions a thousand streams of Claude Code hold 2
MB instead of 179.
"""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from cachetools import LRUCache
from xxhash import xxh3_64_intdigest

from schemas.conversation import Conversation, Text

MAX_SIZE = 12 * 1024 * 1024
"""Bytes of JSON and characters of text that one cache holds: the tools and instructions of some 50 agents."""
MIN_SIZE = 256
"""A smaller part is read as fast as it is found."""
MIN_CHARS = 4096
"""A shorter text is not shared."""
_MESSAGES = 2
"""Some clients send instructions as messages, or put them before the user's first words."""

T = TypeVar("T")
D = TypeVar("D", bytes, str)


class Memo(Generic[T]):
    """Parts of bodies by their JSON or text. Thread-safe; the least recently used go first. Values are immutable."""

    def __init__(self, max_size: int = MAX_SIZE) -> None:
        """`max_size`: in bytes and characters; 0: keeps nothing."""
        self._largest = max_size // 4
        self._entries: LRUCache[int, tuple[bytes | str, T]] = LRUCache(max_size, lambda entry: len(entry[0]))
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes and characters that are held."""
        return int(self._entries.currsize)

    def get(self, part: D, make: Callable[[D], T]) -> T:
        """The value that `make` once returned for this part. Raises as `make`; then nothing is kept."""
        if not MIN_SIZE <= len(part) <= self._largest:
            return make(part)
        key = xxh3_64_intdigest(part.encode() if isinstance(part, str) else part)
        with self._lock:
            entry = self._entries.get(key)
        if entry is not None and entry[0] == part:  # the hash is not collision-resistant
            return entry[1]
        made = make(part)
        with self._lock:
            self._entries[key] = part, made
        return made


def share_texts(conversation: Conversation, texts: Memo[Any]) -> None:
    """Replaces long instructions by equal ones of the memo. The conversation must be new: nothing else reads it yet."""
    lists: list[list[Any]] = [conversation.system, *(message.parts for message in conversation.messages[:_MESSAGES])]
    for parts in lists:
        for at, part in enumerate(parts):
            if isinstance(part, Text) and len(part.text) >= MIN_CHARS:
                parts[at] = texts.get(part.text, Text)
