"""Indexes what this worker's KV cache holds, by the keys that all workers share. Pure.

It has two sources. An engine with KV events reports every block, and its hash is kept beside our key. Of any other
engine with a prefix cache the index assumes what such a cache does: the blocks of a turn's prompt are there when it is
taken, those of its output when it ends, and the least recently used go when the capacity is reached.
"""

from bisect import bisect_left
from collections.abc import Sequence

from msgspec import Struct

from schemas.frames import pack_ids
from services.tokenization.block_keys import block_keys, root
from services.worker.engine import BlockHash, BlocksRemoved, BlocksStored, KvEvent
from services.worker.kv.held_blocks import HeldBlocks

DEFAULT_BLOCKS = 65536
"""Assumed where an engine does not report its capacity."""
_FIRST_LOOK = 64
"""Blocks of a prompt that are looked up at first: the keys of a prompt that nothing is held of are not all made."""


class Changes(Struct):
    """Changes since the last call. `cleared` applies first."""

    cleared: bool = False
    held: dict[int, bool] = {}
    """By key: whether the block is there now."""


class KvBlockIndex:
    """The blocks of one worker."""

    def __init__(self, block_tokens: int, capacity_tokens: int | None) -> None:
        self.block_tokens = block_tokens
        self._assumed = HeldBlocks(max(1, capacity_tokens // block_tokens) if capacity_tokens else DEFAULT_BLOCKS)
        self._reported: dict[int, int] = {}
        """Key → how many ranks hold the block, by the engine's events."""
        self._keys: dict[tuple[int, BlockHash], int] = {}
        """(rank, the engine's hash) → key."""
        self._changes = Changes()
        self.followed = True
        """Changes are recorded."""

    def keys(self) -> list[int]:
        """Every block; of the assumed ones the least recently used first."""
        return [*self._reported, *self._assumed.keys()]

    def take_changes(self) -> Changes:
        """The changes since the last call."""
        changes, self._changes = self._changes, Changes()
        return changes

    def event(self, event: KvEvent) -> None:
        """Applies a KV event of the engine."""
        if isinstance(event, BlocksStored):
            self._store(event)
        elif isinstance(event, BlocksRemoved):
            for block in event.hashes:
                self._release(event.rank, block)
        elif event.rank is None:
            self._keys.clear()
            self._reported.clear()
            self._changes = Changes(cleared=True)
        else:
            for rank, block in [known for known in self._keys if known[0] == event.rank]:
                self._release(rank, block)

    def used(self, keys: Sequence[int]) -> None:
        """The blocks of a prompt, or of a turn that ended, were computed or found just now, by an engine without
        events."""
        came, went = self._assumed.use(keys)
        self._record(came, held=True)
        self._record(went, held=False)

    def held(self, keys: Sequence[int]) -> int:
        """How many blocks of a prompt the cache holds, from its start."""
        if not self._reported:
            return self._assumed.match(keys)
        reported, most, high = self._reported, len(keys), _FIRST_LOOK
        while high < most and keys[high - 1] in reported:
            high *= 2
        return bisect_left(range(min(high, most)), True, key=lambda block: keys[block] not in reported)

    def _store(self, event: BlocksStored) -> None:
        parent = root(event.salt) if event.parent is None else self._keys.get((event.rank, event.parent))
        if parent is None:
            return  # the parent's event was lost: what these blocks follow is unknown
        for block, ids in event.blocks:
            parent = next(block_keys(pack_ids(ids), len(ids), parent=parent))
            if self._keys.get((event.rank, block)) == parent:
                continue
            self._keys[event.rank, block] = parent
            ranks = self._reported[parent] = self._reported.get(parent, 0) + 1
            if ranks == 1:
                self._record((parent,), held=True)

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
            self._changes.held.update(dict.fromkeys(keys, held))
