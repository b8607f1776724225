"""Models which blocks a prefix cache holds; the least recently used are evicted first. Pure.

A block's key stands for all tokens up to its end (`tokenization.block_keys`), so that blocks form
chains that branch, and the cache always holds the beginning of a chain. Blocks that were used
together form a run: chains branch only at the ends of runs, and a use is recorded once for each
run. A prompt of 3,000 blocks costs a search and a copy, cached or not, instead of 3,000 dictionary
entries.
"""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from services.tokenization.block_keys import block_keys

_STRETCH = 64
"""Blocks of a chain that are compared at first."""


def extend_keys(
    keys: Sequence[int], tail: bytes, block_tokens: int, salt: str | None
) -> Sequence[int]:
    """Returns `keys` and those of the whole blocks after them. `tail`: the ids from there on
    (`pack_ids`)."""
    last = keys[-1] if keys else None
    more = block_keys(tail, block_tokens, salt=salt, parent=last)
    if not more:
        return keys
    return array("Q", keys[:]) + more


@dataclass(slots=True, eq=False)
class _BlockRun:
    """Consecutive blocks with the same last use."""

    keys: "array[int]"
    parent: "_BlockRun | None"
    branches: int = 0
    """The number of runs that follow this one."""


class CachedBlocks:
    """A prefix cache's blocks, `capacity` at most."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._runs: dict[int, _BlockRun] = {}
        """Key of a run's first block → run."""
        self._order: OrderedDict[_BlockRun, None] = OrderedDict()
        """The least recently used first, and each before the one that it follows."""
        self._size = 0

    def match(self, keys: Sequence[int]) -> int:
        """Returns how many blocks of a chain are cached, from its start."""
        return self._walk(keys)[1]

    def use(self, keys: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Uses a chain and adds its missing blocks. Returns the blocks that were added and those
        that were evicted.

        Keeps only the beginning of a chain that exceeds the capacity.
        """
        if len(keys) > self._capacity:
            keys = keys[: self._capacity]
        path, matched = self._walk(keys)
        beyond = sum(len(run.keys) for run in path) - matched
        if beyond:
            path[-1] = self._split(path[-1], len(path[-1].keys) - beyond)

        new = keys[matched:]
        if new:
            self._size += len(new)
            last = path[-1] if path else None
            if last is not None and not last.branches:
                last.keys.extend(new)
            else:
                path.append(self._add(array("Q", new), last))

        for run in reversed(path):
            self._order[run] = None
            self._order.move_to_end(run)
        return new, self._evict(self._size - self._capacity)

    def keys(self) -> list[int]:
        """Returns all keys, the least recently used first; within a chain the last block first."""
        return [key for run in self._order for key in reversed(run.keys)]

    def _walk(self, keys: Sequence[int]) -> tuple[list[_BlockRun], int]:
        """Returns the runs that hold a chain's beginning, and how many of its blocks they hold."""
        path: list[_BlockRun] = []
        at = 0
        while at < len(keys):
            run = self._runs.get(keys[at])
            if run is None:
                break
            path.append(run)
            common = _common(run.keys, keys, at)
            at += common
            if common < len(run.keys):
                break
        return path, at

    def _add(self, keys: "array[int]", parent: _BlockRun | None) -> _BlockRun:
        run = _BlockRun(keys, parent)
        self._runs[keys[0]] = run
        if parent is not None:
            parent.branches += 1
        return run

    def _split(self, run: _BlockRun, at: int) -> _BlockRun:
        """Cuts a run in two; returns the first part. `run` itself becomes the second, with the runs
        that follow it."""
        first = _BlockRun(run.keys[:at], run.parent, branches=1)
        self._runs[first.keys[0]] = first
        del run.keys[:at]
        run.parent = first
        self._runs[run.keys[0]] = run
        return first

    def _evict(self, count: int) -> "array[int]":
        evicted = array("Q")
        while len(evicted) < count:
            run = next(iter(self._order))  # no run follows it, because followers come first
            missing = count - len(evicted)
            remaining = max(len(run.keys) - missing, 0)
            evicted += run.keys[remaining:][::-1]
            if not remaining:
                self._remove(run)
            del run.keys[remaining:]
        self._size -= len(evicted)
        return evicted

    def _remove(self, run: _BlockRun) -> None:
        del self._order[run]
        # Chains with colliding keys share an entry, which belongs to the later one.
        if self._runs.get(run.keys[0]) is run:
            del self._runs[run.keys[0]]
        if run.parent is not None:
            run.parent.branches -= 1


def _common(run: "array[int]", keys: Sequence[int], at: int) -> int:
    """Returns how many blocks of a run a chain has from `at` on, where the first is equal. Equal
    keys mean equal chains, so that one comparison covers all earlier blocks."""
    most = min(len(run), len(keys) - at)
    high = _STRETCH
    while high < most and run[high - 1] == keys[at + high - 1]:
        high *= 2
    size = min(high, most)
    chain = keys[at : at + size]
    if run[size - 1] == chain[-1]:
        return size
    return bisect_left(range(size), True, lo=1, key=lambda block: run[block] != chain[block])
