"""Indexes what this worker's KV cache holds, by the keys that all workers share. Pure.

An engine with KV events reports every block; the index maps its hashes to our keys. For any other
engine with a prefix cache the index assumes the usual: the blocks of a prompt are cached with its
first token, those of its output when the turn ends, and the least recently used are evicted when
the capacity is reached. With several groups of layers the index has the ends of beginnings that can
be reused, in place of all blocks (`grouped_blocks`).
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

from schemas.token_ids import pack_ids
from services.tokenization.block_keys import block_keys, root
from services.worker.kv.cached_blocks import CachedBlocks
from services.worker.kv.events import (
    BlockHash,
    BlocksOffloaded,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheUnpredictable,
    GroupRemoved,
    GroupStored,
    KvEvent,
    OffloadedRemoved,
)
from services.worker.kv.grouped_blocks import GroupedBlocks
from services.worker.kv.offloaded import OffloadedBlocks

DEFAULT_BLOCKS = 65536
"""The assumed capacity of an engine that does not report it."""
_FIRST_LOOK = 64
"""Blocks of a prompt that are looked up at first, so that an unknown prompt costs the keys of these
only."""
_REMEMBERED = 65536
"""Removed blocks that are remembered (`KvBlockIndex.was_removed`)."""


class KvBlockIndex:
    """The blocks of one worker."""

    def __init__(
        self, block_tokens: int, capacity_tokens: int | None, recomputed_blocks: int = 0
    ) -> None:
        """`recomputed_blocks`: as in `EngineInfo`."""
        self.block_tokens = block_tokens
        capacity = DEFAULT_BLOCKS
        if capacity_tokens:
            capacity = max(1, capacity_tokens // block_tokens)
        self._assumed = CachedBlocks(capacity)
        self._reported: dict[int, int] = {}
        """Key → how many ranks hold the block, by the engine's events."""
        self._keys: dict[tuple[int, BlockHash], int] = {}
        """(rank, the engine's hash) → key."""
        self._recomputed = recomputed_blocks
        self._grouped = GroupedBlocks(block_tokens, recomputed_blocks)
        self.offloaded = OffloadedBlocks()
        """The blocks in slower memory; none with ends."""
        self.has_ends = False
        """The keys are those of ends (`grouped_blocks`)."""
        self.unpredictable = ""
        """Why the index has nothing, for good; "": it has something."""
        self._cleared = False
        self._changes: dict[int, bool] = {}
        """Key → whether the block is cached now."""
        self.followed = True
        """Whether changes are recorded."""
        self.removals = 0
        """How many blocks the engine has reported as removed so far."""
        self._removed: OrderedDict[int, int] = OrderedDict()
        """Key → the value of `removals` at its last removal."""
        self._all_removed = 0
        """The value of `removals` when the cache was last cleared."""

    def keys(self) -> list[int]:
        """Returns the keys of all blocks; the least recently used of assumed ones come first."""
        return [*self._grouped.ends(), *self._reported, *self._assumed.keys()]

    def take_changes(self) -> tuple[bool, dict[int, bool]]:
        """Returns the changes since the last call: whether all blocks were cleared, which applies
        first, and by key whether a block is cached now."""
        changes = (self._cleared, self._changes)
        self._cleared = False
        self._changes = {}
        return changes

    def apply(self, event: KvEvent) -> None:
        """Applies a KV event of the engine."""
        if self.unpredictable:
            return
        if isinstance(event, CacheUnpredictable):
            self.give_up(event.reason)
        elif isinstance(event, CacheCleared) and event.rank is None:
            self._clear()
        elif isinstance(event, GroupStored) or self.has_ends:
            self._apply_grouped(event)
        elif isinstance(event, BlocksOffloaded):
            self.offloaded.add(event.hashes, self._keys)
        elif isinstance(event, OffloadedRemoved):
            self.offloaded.remove(event.hashes)
        elif isinstance(event, BlocksStored):
            self._store(event)
        elif isinstance(event, BlocksRemoved):
            for block in event.hashes:
                self._release(event.rank, block)
        elif isinstance(event, CacheCleared):
            for rank, block in list(self._keys):
                if rank == event.rank:
                    self._release(rank, block)

    def give_up(self, reason: str) -> None:
        """Forgets all blocks, and those of later events."""
        self._clear()
        self.unpredictable = reason

    def _clear(self) -> None:
        self._keys.clear()
        self._reported.clear()
        self._grouped.clear()
        self._grouped.take_changes()
        self.offloaded.clear()
        self._cleared = True
        self._changes = {}
        self.removals += 1
        self._all_removed = self.removals

    def record_use(self, keys: Sequence[int]) -> None:
        """Notes that an engine without events has just computed or found the blocks of a prompt or
        an ended turn."""
        if self.unpredictable:
            return
        added, evicted = self._assumed.use(keys)
        self._record(added, cached=True)
        self._record(evicted, cached=False)

    def count_cached(self, keys: Sequence[int], most: int) -> int:
        """Returns how many of the first `most` blocks of a prompt the engine will find in its
        cache."""
        if self.unpredictable:
            return 0
        if self.has_ends:
            return self._grouped.count_reusable(keys, most)
        run = self._count_run(keys)
        return max(min(run, most) - self._recomputed, 0)

    def was_removed(self, key: int, since: int) -> bool:
        """Whether a block was removed after the first `since` removals, or may have been."""
        if since < self._all_removed or self.removals - since >= _REMEMBERED:
            return True
        return self._removed.get(key, 0) > since

    def _count_run(self, keys: Sequence[int]) -> int:
        """Returns how many blocks of a prompt are cached, from its start."""
        if not self._reported:
            return self._assumed.match(keys)
        reported = self._reported
        high = _FIRST_LOOK
        while high < len(keys) and keys[high - 1] in reported:
            high *= 2
        blocks = range(min(high, len(keys)))
        return bisect_left(blocks, True, key=lambda block: keys[block] not in reported)

    def _apply_grouped(self, event: KvEvent) -> None:
        if not self.has_ends:
            self._clear()  # blocks without a group before the first event of a group
            self.has_ends = True
        if isinstance(event, GroupStored):
            self._grouped.store_in_group(event.group, event.hashes)
        elif isinstance(event, GroupRemoved):
            self._grouped.remove_from_group(event.group, event.hashes)
        elif isinstance(event, BlocksStored):
            self._grouped.store(event)
        elif isinstance(event, BlocksRemoved):
            self._grouped.remove(event.hashes)
        for key, is_cached in self._grouped.take_changes().items():
            if not is_cached:
                self._remember(key)
            self._record((key,), is_cached)

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
                self._record((key,), cached=True)

    def _release(self, rank: int, block: BlockHash) -> None:
        key = self._keys.pop((rank, block), None)
        if key is None:
            return
        self.offloaded.note_left(block, key)
        self._reported[key] -= 1
        if not self._reported[key]:
            del self._reported[key]
            self._remember(key)
            self._record((key,), cached=False)

    def _record(self, keys: Sequence[int], cached: bool) -> None:
        if self.followed:
            self._changes.update(dict.fromkeys(keys, cached))

    def _remember(self, key: int) -> None:
        """Notes that a block was removed."""
        self.removals += 1
        self._removed[key] = self.removals
        self._removed.move_to_end(key)
        if len(self._removed) > _REMEMBERED:
            self._removed.popitem(last=False)
