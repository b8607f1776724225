"""Indexes what this worker's KV cache holds, by the keys that all workers share. Pure.

An engine with KV events reports every block; the index maps its hashes to our keys. For any other
engine with a prefix cache the index assumes the usual: the blocks of a prompt are cached with its
first token, those of its output when the turn ends, and the least recently used are evicted when
the capacity is reached.
"""

from bisect import bisect_left
from collections.abc import Sequence

from schemas.frames import pack_ids
from services.tokenization.block_keys import block_keys, root
from services.worker.engine import BlockHash, BlocksRemoved, BlocksStored, KvEvent
from services.worker.kv.cached_blocks import CachedBlocks

DEFAULT_BLOCKS = 65536
"""The assumed capacity of an engine that does not report it."""
_FIRST_LOOK = 64
"""Blocks of a prompt that are looked up at first, so that an unknown prompt costs the keys of these
only."""


class KvBlockIndex:
    """The blocks of one worker."""

    def __init__(self, block_tokens: int, capacity_tokens: int | None) -> None:
        self.block_tokens = block_tokens
        capacity = DEFAULT_BLOCKS
        if capacity_tokens:
            capacity = max(1, capacity_tokens // block_tokens)
        self._assumed = CachedBlocks(capacity)
        self._reported: dict[int, int] = {}
        """Key → how many ranks hold the block, by the engine's events."""
        self._keys: dict[tuple[int, BlockHash], int] = {}
        """(rank, the engine's hash) → key."""
        self._cleared = False
        self._changes: dict[int, bool] = {}
        """Key → whether the block is held now."""
        self.followed = True
        """Whether changes are recorded."""

    def keys(self) -> list[int]:
        """Returns the keys of all blocks; the least recently used of assumed ones come first."""
        return [*self._reported, *self._assumed.keys()]

    def take_changes(self) -> tuple[bool, dict[int, bool]]:
        """Returns the changes since the last call: whether all blocks were cleared, which applies
        first, and by key whether a block is held now."""
        changes = (self._cleared, self._changes)
        self._cleared = False
        self._changes = {}
        return changes

    def apply(self, event: KvEvent) -> None:
        """Applies a KV event of the engine."""
        if isinstance(event, BlocksStored):
            self._store(event)
        elif isinstance(event, BlocksRemoved):
            for block in event.hashes:
                self._release(event.rank, block)
        elif event.rank is None:
            self._clear()
        else:
            for rank, block in list(self._keys):
                if rank == event.rank:
                    self._release(rank, block)

    def _clear(self) -> None:
        self._keys.clear()
        self._reported.clear()
        self._cleared = True
        self._changes = {}

    def record_use(self, keys: Sequence[int]) -> None:
        """Notes that an engine without events has just computed or found the blocks of a prompt or
        an ended turn."""
        added, evicted = self._assumed.use(keys)
        self._record(added, held=True)
        self._record(evicted, held=False)

    def count_cached(self, keys: Sequence[int]) -> int:
        """Returns how many blocks of a prompt the cache holds, from its start."""
        if not self._reported:
            return self._assumed.match(keys)
        reported = self._reported
        high = _FIRST_LOOK
        while high < len(keys) and keys[high - 1] in reported:
            high *= 2
        blocks = range(min(high, len(keys)))
        return bisect_left(blocks, True, key=lambda block: keys[block] not in reported)

    def _store(self, event: BlocksStored) -> None:
        parent: int | None = root(event.salt)
        if event.parent is not None:
            parent = self._keys.get((event.rank, event.parent))
        if parent is None:
            return  # the parent's event was lost, so the keys cannot be computed

        for block, ids in event.blocks:
            (key,) = block_keys(pack_ids(ids), len(ids), parent=parent)
            parent = key
            if self._keys.get((event.rank, block)) == key:
                continue
            self._keys[event.rank, block] = key
            ranks = self._reported.get(key, 0) + 1
            self._reported[key] = ranks
            if ranks == 1:
                self._record((key,), held=True)

    def _release(self, rank: int, block: BlockHash) -> None:
        key = self._keys.pop((rank, block), None)
        if key is None:
            return
        self._reported[key] -= 1
        if not self._reported[key]:
            del self._reported[key]
            self._record((key,), held=False)

    def _record(self, keys: Sequence[int], held: bool) -> None:
        if self.followed:
            self._changes.update(dict.fromkeys(keys, held))
