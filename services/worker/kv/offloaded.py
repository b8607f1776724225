"""Indexes the blocks of a cache in a slower memory, from which the engine loads them again. Pure.

Its events have the hashes of the cache's own blocks and nothing else that is needed. So the keys
are those that the blocks have, or had, in the cache.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from services.worker.kv.events import BlockHash

_REMEMBERED = 65536
"""Blocks that have left the cache, with keys that are remembered: copies take a while."""


class OffloadedBlocks:
    """The offloaded blocks of one worker."""

    def __init__(self) -> None:
        self._keys: dict[BlockHash, int] = {}
        self._left: OrderedDict[BlockHash, int] = OrderedDict()
        """Hash → key, of the blocks that left the cache last."""
        self._changes: dict[int, bool] = {}

    def keys(self) -> list[int]:
        """Returns the keys of all blocks, the oldest first."""
        return list(self._keys.values())

    def take_changes(self) -> dict[int, bool]:
        """Returns what has changed since the last call: by key whether a block is there now."""
        changes = self._changes
        self._changes = {}
        return changes

    def add(
        self, hashes: Sequence[BlockHash], in_cache: Mapping[tuple[int, BlockHash], int]
    ) -> None:
        """Adds blocks. `in_cache`: (rank, hash) → key, for an engine with one rank. A block that is
        unknown there, as one of another group of layers, is left out."""
        for hash_ in hashes:
            key = in_cache.get((0, hash_), self._left.get(hash_))
            if key is not None:
                self._keys[hash_] = key
                self._changes[key] = True

    def remove(self, hashes: Sequence[BlockHash]) -> None:
        """Removes blocks."""
        for hash_ in hashes:
            key = self._keys.pop(hash_, None)
            if key is not None:
                self._changes[key] = False

    def note_left(self, hash_: BlockHash, key: int) -> None:
        """Notes that a block has left the cache itself."""
        self._left[hash_] = key
        self._left.move_to_end(hash_)
        if len(self._left) > _REMEMBERED:
            self._left.popitem(last=False)

    def clear(self) -> None:
        """Removes all blocks. The caller publishes that everything was cleared."""
        self._keys.clear()
        self._left.clear()
        self._changes = {}
