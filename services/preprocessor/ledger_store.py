"""What a preprocessor keeps of turns in memory: their entries, and the ids of prompts that were made. Bounded in bytes;
what was asked for the longest time ago goes first.
"""

import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from msgspec import Struct

from schemas.conversation import Call, Reasoning, Text, Turn
from schemas.ledger import LedgerEntry
from services.preprocessor.messages import Unseal
from services.preprocessor.segments import TokenIds

MAX_SIBLINGS = 4
"""Entries under one key: answers that differ only in their reasoning, or in white space."""
_ENTRY_OVERHEAD = 1024
_PER_ID_BYTE = 4
"""An id's four bytes, and what its text costs once it was read."""


class Told(Struct, frozen=True):
    """What a client sent back for a turn, and what was made of it: next time it need not be compared again, and the
    same objects compare as equal in no time."""

    sent: list[Turn]
    said: list[Turn]
    restore: bool
    unseal: Unseal | None


class Held(Struct):
    """An entry, and what was found out about it."""

    entry: LedgerEntry
    turn: "OwnTurn | None" = None
    told: Told | None = None
    unreadable: bool = False
    """Its ids are no tokens of this model, or do not say what its key says."""

    def ids(self) -> TokenIds:
        """The turn's ids. Raises ValueError where they are not whole."""
        ids: TokenIds = array("I")
        ids.frombytes(self.entry.ids)
        if sys.byteorder == "big":
            ids.byteswap()
        return ids


class OwnTurn(Struct, frozen=True):
    """What a turn's own tokens say."""

    text: str
    """As the parser got it, up to where its client was shown something."""
    parts: list[Text | Reasoning | Call]


class EntryStore:
    """Entries by key. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._limit = max_bytes
        self._held: OrderedDict[bytes, list[Held]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes held, about."""
        return self._size

    def __len__(self) -> int:
        return len(self._held)

    def add(self, entry: LedgerEntry) -> bool:
        """Keeps an entry. False: it was there."""
        with self._lock:
            siblings = self._held.setdefault(entry.key, [])
            self._held.move_to_end(entry.key)
            if any(held.entry.mac == entry.mac for held in siblings):
                return False
            siblings.insert(0, Held(entry))
            self._size += _weight(entry)
            for dropped in siblings[MAX_SIBLINGS:]:
                self._size -= _weight(dropped.entry)
            del siblings[MAX_SIBLINGS:]
            while self._size > self._limit and self._held:
                _, gone = self._held.popitem(last=False)
                self._size -= sum(_weight(held.entry) for held in gone)
            return True

    def find(self, key: bytes) -> Sequence[Held]:
        """The entries of a key, newest first."""
        if key not in self._held:  # without the lock: a session from elsewhere asks for every one of its turns
            return ()
        with self._lock:
            siblings = self._held.get(key)
            if siblings is None:
                return ()
            self._held.move_to_end(key)
            return tuple(siblings)

    def one(self, key: bytes, mac: bytes) -> Held | None:
        """A certain entry."""
        return next((held for held in self.find(key) if held.entry.mac == mac), None)


class PromptCache:
    """Ids of prompts. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._limit = max_bytes
        self._ids: OrderedDict[bytes, TokenIds] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: bytes) -> "TokenIds | None":
        """The ids of a prompt; not to be changed."""
        with self._lock:
            ids = self._ids.get(key)
            if ids is not None:
                self._ids.move_to_end(key)
            return ids

    def put(self, key: bytes, ids: TokenIds, *, instead_of: bytes | None = None) -> None:
        """Keeps a prompt; the one that it goes on from can be made again should it be needed."""
        with self._lock:
            for known in (key, instead_of):
                if known is not None and (former := self._ids.pop(known, None)) is not None:
                    self._size -= 4 * len(former)
            self._ids[key] = ids
            self._size += 4 * len(ids)
            while self._size > self._limit:
                _, gone = self._ids.popitem(last=False)
                self._size -= 4 * len(gone)


def _weight(entry: LedgerEntry) -> int:
    return _ENTRY_OVERHEAD + _PER_ID_BYTE * len(entry.ids) + 4 * len(entry.seat.said) + len(entry.tail)
