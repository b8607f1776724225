"""Keeps turns in memory: ledger entries by key, and ids of prompts. Bounded in bytes, least recently used out first."""

import threading
from array import array
from collections.abc import Sequence

from cachetools import LRUCache
from msgspec import Struct

from schemas.conversation import Call, Reasoning, Text, Turn
from schemas.frames import unpack_array
from schemas.ledger import LedgerEntry
from services.templates.messages import Unseal
from services.tokenization.segments import TokenIds

MAX_SIBLINGS = 4
"""Entries under one key: turns that differ only in their reasoning, or in white space."""
_ENTRY_OVERHEAD = 1024
_PER_ID_BYTE = 4
"""The memory of an id's four bytes, its parsed text included."""


class OriginalTurn(Struct, frozen=True):
    """What a turn's original tokens parse to."""

    text: str
    """As the parser received it, up to where its client was shown something."""
    parts: list[Text | Reasoning | Call]


class RestoredTurn(Struct, frozen=True):
    """A turn as a client sent it back, and its restored form. The next request holds the same objects, which compare as
    equal in no time, so that the comparison is not repeated."""

    sent: list[Turn]
    restored: list[Turn]
    with_reasoning: bool
    unseal: Unseal | None


class StoredEntry(Struct):
    """An entry, and what was computed from it."""

    entry: LedgerEntry
    turn: OriginalTurn | None = None
    restored: RestoredTurn | None = None
    unreadable: bool = False
    """Its ids are not tokens of this model, or do not parse to what its key stands for."""

    def ids(self) -> TokenIds:
        """The turn's ids. Raises ValueError where they are damaged."""
        return unpack_array(self.entry.ids)


class EntryStore:
    """Entries by key. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._entries: LRUCache[bytes, tuple[StoredEntry, ...]] = LRUCache(max_bytes, getsizeof=_weight)
        self._lock = threading.Lock()

    @property
    def size(self) -> float:
        """Bytes held, about."""
        return self._entries.currsize

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: LedgerEntry) -> bool:
        """Keeps an entry. False: it was there."""
        with self._lock:
            siblings = self._entries.get(entry.key, ())
            if any(stored.entry.mac == entry.mac for stored in siblings):
                return False
            kept = (StoredEntry(entry), *siblings)[:MAX_SIBLINGS]
            if _weight(kept) <= self._entries.maxsize:
                self._entries[entry.key] = kept
            return True

    def find(self, key: bytes) -> Sequence[StoredEntry]:
        """The entries of a key, newest first."""
        if key not in self._entries:  # without the lock: a session from another process looks up every turn of it
            return ()
        with self._lock:
            return self._entries.get(key, ())

    def one(self, key: bytes, mac: bytes) -> StoredEntry | None:
        """The entry of a key with this `mac`."""
        return next((stored for stored in self.find(key) if stored.entry.mac == mac), None)


class PromptCache:
    """Ids of prompts. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._ids: LRUCache[bytes, array[int]] = LRUCache(max_bytes, getsizeof=lambda ids: 4 * len(ids))
        self._lock = threading.Lock()

    def get(self, key: bytes) -> "TokenIds | None":
        """The ids of a prompt; not to be changed."""
        with self._lock:
            return self._ids.get(key)

    def put(self, key: bytes, ids: TokenIds, *, instead_of: bytes | None = None) -> None:
        """Keeps a prompt instead of the one that it extends, which can be computed again."""
        with self._lock:
            if instead_of is not None:
                self._ids.pop(instead_of, None)
            if 4 * len(ids) <= self._ids.maxsize:
                self._ids[key] = ids


def _weight(siblings: Sequence[StoredEntry]) -> int:
    entries = [stored.entry for stored in siblings]
    return sum(
        _ENTRY_OVERHEAD + _PER_ID_BYTE * len(entry.ids) + 4 * len(entry.context.begun) + len(entry.tail)
        for entry in entries
    )
