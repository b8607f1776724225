"""Which blocks a prefix cache holds, least recently used first out. Pure.

A block is known by a key that stands for all tokens up to its end (`runtime.block_keys`), so that blocks form chains
that branch, and what is held of a chain is always its beginning. A use of a chain is noted at its last block alone: a
block was used when the last of those behind it was. A prompt of 3,000 blocks that is mostly known costs a search and
its new blocks, not 3,000 entries moved to the end of a list.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import islice

_ROOT = -1
"""Before the first block of every chain. Keys are not negative."""
_SLACK = 64


class HeldBlocks:
    """A prefix cache's blocks, `capacity` at most."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._parents: dict[int, int] = {}
        """Every block that is held → the one before it. A block comes after its parent."""
        self._branches: dict[int, int] = {}
        """Blocks that more than one follows → how many more."""
        self._used: dict[int, int] = {}
        """Blocks at which a use ended → its number."""
        self._leaves: list[tuple[int, int]] = []
        """A heap of (use, block); holds every block that none follows, and some that are not so any more."""
        self._tails: dict[int, int] = {}
        """Blocks that none follows → the use under which they are in the heap."""
        self._uses = 0

    def __len__(self) -> int:
        return len(self._parents)

    def match(self, keys: Sequence[int]) -> int:
        """How many blocks of a chain are held, from its start."""
        held = self._parents
        if not keys or keys[0] not in held:
            return 0
        if keys[-1] in held:
            return len(keys)
        low, high = 1, len(keys)  # the first `low` are held, not all of the first `high`
        while low + 1 < high:
            middle = (low + high) // 2
            if keys[middle - 1] in held:
                low = middle
            else:
                high = middle
        return low

    def use(self, keys: Sequence[int]) -> tuple[Sequence[int], list[int]]:
        """A chain is used, and computed where it was not held. Returns the blocks that came in and those that went.

        Of a chain beyond the capacity the beginning is kept.
        """
        if not keys:
            return (), []
        if len(keys) > self._capacity:
            keys = keys[: self._capacity]
        known = self.match(keys)
        new = keys[known:]
        if new:
            self._append(keys[known - 1] if known else _ROOT, new)
        self._uses += 1
        last = keys[-1]
        self._used[last] = self._uses
        if new or last in self._tails:
            self._is_leaf(last, self._uses)
        return new, self._evict(len(self._parents) - self._capacity)

    def keys(self) -> list[int]:
        """Every block, the least recently used first, of one chain the last first."""
        used: dict[int, int] = {}
        order: list[int] = []
        for key, parent in reversed(self._parents.items()):  # what follows a block comes before it here
            at = used[key] = max(used.get(key, 0), self._used.get(key, 0))
            used[parent] = max(used.get(parent, 0), at)
            order.append(key)
        return sorted(order, key=used.__getitem__)

    def _append(self, parent: int, new: Sequence[int]) -> None:
        if parent != _ROOT and self._tails.pop(parent, None) is None:
            self._branches[parent] = self._branches.get(parent, 0) + 1
        parents = self._parents
        parents[new[0]] = parent
        parents.update(zip(islice(new, 1, None), new, strict=False))

    def _is_leaf(self, key: int, use: int) -> None:
        self._tails[key] = use
        heappush(self._leaves, (use, key))
        if len(self._leaves) > 2 * len(self._tails) + _SLACK:
            self._leaves = [(at, leaf) for leaf, at in self._tails.items()]
            heapify(self._leaves)

    def _evict(self, count: int) -> list[int]:
        gone: list[int] = []
        while len(gone) < count:
            use, key = heappop(self._leaves)
            if self._tails.get(key) == use:
                self._evict_from(key, use, count, gone)
        return gone

    def _evict_from(self, key: int, use: int, count: int, gone: list[int]) -> None:
        """Drops a chain from its end on, as long as nothing else holds on to it that was used later."""
        del self._tails[key]
        while True:
            parent = self._parents.pop(key)
            self._used.pop(key, None)
            gone.append(key)
            if parent == _ROOT:
                return
            if more := self._branches.get(parent, 0):
                if more == 1:
                    del self._branches[parent]
                else:
                    self._branches[parent] = more - 1
                return
            own = self._used.get(parent, 0)
            if own > use or len(gone) == count:
                self._is_leaf(parent, max(own, use))
                return
            key = parent
