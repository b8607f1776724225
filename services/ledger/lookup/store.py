"""Keeps turns in memory: ledger entries by key, and ids of prompts. Bounded in bytes, least
recently used out first."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from itertools import islice

from cachetools import LRUCache

from schemas.ledger import LedgerEntry
from services.ledger.turns.turn import Turn
from services.tokenization.segments import TokenIds

_ENTRY_OVERHEAD = 1024
_PER_ID_BYTE = 4
"""The memory of an id's four bytes, its parsed text included."""
_PER_DIGEST = 160


class EntryStore:
    """Entries by key. Entries of one key are siblings: turns with the same visible history.
    Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._entries: OrderedDict[bytes, Turn] = OrderedDict()
        """Entries by `mac`, least recently used first. Each prompt of a session uses all of its
        entries: cachetools takes ten times as long for that."""
        self._bytes = 0
        self._max_bytes = max_bytes
        self._siblings: dict[bytes, _Siblings] = {}
        self._lock = threading.RLock()
        self.shared = False
        """A bucket may have siblings that are not here."""

    @property
    def size(self) -> int:
        """Bytes held, about."""
        return self._bytes

    def __repr__(self) -> str:
        return f"<{len(self)} turns, {self._bytes} of {self._max_bytes} bytes>"

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: LedgerEntry) -> bool:
        """Keeps an entry. False: the store has it."""
        with self._lock:
            if entry.mac in self._entries:
                return False
            if _weight(entry) <= self._max_bytes:
                self._put(Turn.of(entry))
                while self._bytes > self._max_bytes:
                    self._evict()
            return True

    def __contains__(self, key: bytes) -> bool:
        """Whether there are entries of a key. Without the lock: a session from another process
        looks up every turn."""
        return key in self._siblings

    def find(self, key: bytes, most: int) -> list[Turn]:
        """The entries of a key that may be chosen without ids and seals, newest first, `most` at
        most."""
        with self._lock:
            siblings = self._siblings.get(key)
            if siblings is None:
                return []
            newest_first = reversed(siblings.entries.values())
            ended = (turn for turn in newest_first if not turn.entry.beginning)
            return list(islice(ended, most))

    def are_equal(self, key: bytes) -> bool:
        """Whether the entries that `find` returns differ in nothing but the prompt before them."""
        with self._lock:
            siblings = self._siblings.get(key)
            return siblings is None or len(siblings.contents) < 2

    def find_identified(
        self, key: bytes, digests: Iterable[bytes], without: Collection[bytes] = frozenset()
    ) -> Turn | None:
        """Finds an entry of this key that has one of these digests of ids and none of `without`. If
        a turn and its beginnings fit, returns the longest."""
        with self._lock:
            siblings = self._siblings.get(key)
            if siblings is None:
                return None
            for digest in digests:
                turns = siblings.by_id.get(digest, ())
                turns = [turn for turn in turns if not set(without) & set(turn.entry.id_digests)]
                if turns:
                    return max(turns, key=_size)
            return None

    def get(self, mac: bytes) -> Turn | None:
        """The entry with this `mac`; becomes the most recently used."""
        with self._lock:
            turn = self._entries.get(mac)
            if turn is not None:
                self._entries.move_to_end(mac)
            return turn

    def is_complete(self, key: bytes) -> bool:
        """Whether all entries of the key are here, to the knowledge of this process."""
        siblings = self._siblings.get(key)
        if siblings is None:
            return not self.shared
        return siblings.complete

    def set_complete(self, key: bytes) -> None:
        """Notes that all entries which the bucket has of this key were added."""
        with self._lock:
            siblings = self._siblings.get(key)
            if siblings is not None:
                siblings.complete = True

    def doubt(self) -> None:
        """Notes that entries may have been missed: no key counts as complete any more."""
        with self._lock:
            for siblings in self._siblings.values():
                siblings.complete = False

    def _put(self, turn: Turn) -> None:
        entry = turn.entry
        siblings = self._siblings.setdefault(entry.key, _Siblings(not self.shared))
        siblings.entries[entry.mac] = turn
        for digest in entry.id_digests:
            siblings.by_id.setdefault(digest, []).append(turn)
        if not entry.beginning:
            siblings.contents[turn.content] += 1
        self._entries[entry.mac] = turn
        self._bytes += _weight(entry)

    def _evict(self) -> None:
        _, turn = self._entries.popitem(last=False)
        entry = turn.entry
        self._bytes -= _weight(entry)
        siblings = self._siblings[entry.key]
        del siblings.entries[entry.mac]
        for digest in entry.id_digests:
            siblings.by_id[digest].remove(turn)
            if not siblings.by_id[digest]:
                del siblings.by_id[digest]
        if not entry.beginning:
            siblings.contents[turn.content] -= 1
            if not siblings.contents[turn.content]:
                del siblings.contents[turn.content]
        siblings.complete = False
        if not siblings.entries:
            del self._siblings[entry.key]


class _Siblings:
    __slots__ = ("by_id", "complete", "contents", "entries")

    def __init__(self, complete: bool) -> None:
        self.complete = complete
        self.entries: dict[bytes, Turn] = {}
        """Entries by `mac`, oldest first."""
        self.by_id: dict[bytes, list[Turn]] = {}
        """Entries by each of their `id_digests`: a turn and its beginnings with equal calls."""
        self.contents = Counter[bytes]()
        """How many entries have this content (`Turn.content`), beginnings aside."""


class PromptCache:
    """Ids of prompts. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._ids: LRUCache[bytes, TokenIds] = LRUCache(max_bytes, _bytes_of)
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
            if _bytes_of(ids) <= self._ids.maxsize:
                self._ids[key] = ids


def _bytes_of(ids: TokenIds) -> int:
    return ids.itemsize * len(ids)


def _size(turn: Turn) -> tuple[bool, int]:
    return not turn.entry.beginning, len(turn.entry.ids)


def _weight(entry: LedgerEntry) -> int:
    ids = _PER_ID_BYTE * len(entry.ids)
    digests = _PER_DIGEST * (len(entry.id_digests) + len(entry.reasoning_digests))
    text = 4 * len(entry.context.started) + len(entry.tail)
    return _ENTRY_OVERHEAD + ids + digests + text
