"""Indexes which worker holds which KV blocks. Pure.

It is a flat radix tree of prompts: a key stands for all tokens up to its block's end, so that
walking a prompt's keys finds the longest prefix that a worker holds. A worker of a model with
states or windows has the keys at which a prefix can end (`KvUpdate.ends`) in place of all blocks.
"""

from collections.abc import Iterable, Mapping, Sequence

MAX_KEYS = 1_000_000
"""Limit of one worker's keys: 32 million tokens in blocks of 32. The oldest are dropped first."""

_NOBODY: frozenset[str] = frozenset()


class KvIndex:
    """The blocks of all workers of a model."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._holders: dict[int, frozenset[str]] = {}
        self._keys_of: dict[str, dict[int, None]] = {}
        self._sets: dict[frozenset[str], frozenset[str]] = {}
        """One object for equal sets: there are few sets and a great many blocks."""
        self._with_ends = _NOBODY
        """The workers with ends."""
        self._offloaded: dict[str, dict[int, None]] = {}
        """The blocks in the slower memory of each worker that has one."""

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, worker: str, keys: Iterable[int]) -> None:
        """Adds blocks of a worker."""
        present = self._keys_of.setdefault(worker, {})
        this_worker = frozenset((worker,))
        for key in keys:
            if key not in present:
                present[key] = None
                holders = self._holders.get(key, frozenset())
                self._holders[key] = self._shared(holders | this_worker)
        while len(present) > self._max_keys:
            self._drop(worker, next(iter(present)))

    def remove(self, worker: str, keys: Iterable[int]) -> None:
        """Removes blocks of a worker."""
        for key in keys:
            if key in self._keys_of.get(worker, ()):
                self._drop(worker, key)

    def forget(self, worker: str) -> None:
        """Removes all blocks of a worker."""
        for key in list(self._keys_of.get(worker, ())):
            self._drop(worker, key)
        self._keys_of.pop(worker, None)
        self._sets.clear()
        self._with_ends -= {worker}
        self._offloaded.pop(worker, None)

    def add_offloaded(self, worker: str, keys: Sequence[int]) -> None:
        """Adds blocks in a worker's slower memory."""
        if not keys:
            return
        offloaded = self._offloaded.setdefault(worker, {})
        offloaded.update(dict.fromkeys(keys))
        while len(offloaded) > self._max_keys:
            del offloaded[next(iter(offloaded))]

    def remove_offloaded(self, worker: str, keys: Iterable[int]) -> None:
        """Removes blocks from a worker's slower memory."""
        for key in keys:
            self._offloaded.get(worker, {}).pop(key, None)

    @property
    def has_offloaded(self) -> bool:
        """Whether any worker has a slower memory."""
        return bool(self._offloaded)

    def loadable(self, keys: Sequence[int], overlaps: Mapping[str, int]) -> dict[str, int]:
        """The number of blocks after those of `overlaps` that each worker can load from its slower
        memory, some of them perhaps in its cache; without workers that can load none."""
        loadable = {}
        for worker, offloaded in self._offloaded.items():
            first = depth = overlaps.get(worker, 0)
            cached = self._keys_of.get(worker, {})
            while depth < len(keys) and (keys[depth] in offloaded or keys[depth] in cached):
                depth += 1
            if depth > first:
                loadable[worker] = depth - first
        return loadable

    def set_ends(self, worker: str, has_ends: bool) -> None:
        """Notes whether the keys of a worker are ends."""
        if has_ends:
            self._with_ends |= {worker}

    def has_ends(self, worker: str) -> bool:
        """Whether the keys of a worker are ends."""
        return worker in self._with_ends

    def overlaps(self, keys: Sequence[int]) -> dict[str, int]:
        """The number of leading blocks of a prompt that each worker can reuse; without workers that
        can reuse none."""
        depths = self._runs(keys)
        if self._with_ends:
            for depth, key in enumerate(keys, 1):
                holders = self._holders.get(key, _NOBODY) & self._with_ends
                depths.update(dict.fromkeys(holders, depth))
        return depths

    def _runs(self, keys: Iterable[int]) -> dict[str, int]:
        """The number of leading blocks that each worker holds."""
        depths: dict[str, int] = {}
        depth = 0
        previous = active = _NOBODY
        for key in keys:
            holders = self._holders.get(key, _NOBODY)
            if holders is not previous:  # rarely: there are few sets of workers
                still_active = holders if depth == 0 else active & holders
                for worker in active - still_active:
                    depths[worker] = depth
                active = still_active
                previous = holders
            if not active:
                return depths
            depth += 1
        for worker in active:
            depths[worker] = depth
        return depths

    def _drop(self, worker: str, key: int) -> None:
        del self._keys_of[worker][key]
        rest = self._holders[key] - {worker}
        if rest:
            self._holders[key] = self._shared(rest)
        else:
            del self._holders[key]

    def _shared(self, workers: frozenset[str]) -> frozenset[str]:
        return self._sets.setdefault(workers, workers)
