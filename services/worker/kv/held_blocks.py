"""Models which blocks a prefix cache holds; the least recently used are evicted first. Pure.

A block's key stands for all tokens up to its end (`tokenization.block_keys`), so that blocks form chains that branch,
and what is held of a chain is always its beginning. Blocks that were used together are held together, as a run: chains
part only at the ends of runs, and a use is recorded once for each run. A prompt of 3,000 blocks costs a search and a
copy, held or not, instead of 3,000 dictionary entries.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from services.tokenization.block_keys import block_keys

_SLACK = 64
_STRETCH = 64
"""How far a chain is compared at first."""


def extended(keys: Sequence[int], tail: bytes, block_tokens: int, salt: str | None) -> Sequence[int]:
    """`keys` and those of the whole blocks behind them. `tail`: the ids from there on (`pack_ids`)."""
    more = list(block_keys(tail, block_tokens, salt=salt, parent=keys[-1] if keys else None))
    return [*keys, *more] if more else keys


class _Run:
    """Blocks that follow each other and had the same last use."""

    __slots__ = ("branches", "keys", "parent", "start", "used")

    def __init__(self, keys: list[int], parent: "_Run | None", start: int, used: int) -> None:
        self.keys = keys
        """Empty once the run is evicted."""
        self.parent = parent
        self.start = start
        """Blocks before it in its chain."""
        self.used = used
        """Number of the last use."""
        self.branches = 0
        """Runs that follow it."""


class HeldBlocks:
    """A prefix cache's blocks, `capacity` at most."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._runs: dict[int, _Run] = {}
        """By their first blocks' keys."""
        self._size = 0
        self._leaves: list[tuple[int, int, _Run]] = []
        """A heap of (use, tie-breaker, run): every run that no run follows, and outdated entries of others."""
        self._pushed = 0
        self._uses = 0

    def __len__(self) -> int:
        return self._size

    def match(self, keys: Sequence[int]) -> int:
        """How many blocks of a chain are held, from its start."""
        return self._walk(keys)[1]

    def use(self, keys: Sequence[int]) -> tuple[Sequence[int], list[int]]:
        """Uses a chain, adding what was not held. Returns the blocks that were added and those that were evicted.

        Of a chain beyond the capacity the beginning is kept.
        """
        if not keys:
            return (), []
        if len(keys) > self._capacity:
            keys = keys[: self._capacity]
        path, known = self._walk(keys)
        last = path[-1] if path else None
        if last is not None and known < last.start + len(last.keys):
            last = path[-1] = self._split(last, known - last.start)
        self._uses += 1
        for run in path:
            run.used = self._uses
        new = keys[known:]
        if new:
            last = self._append(last, new)
        if last is not None and not last.branches:
            self._is_leaf(last)
        return new, self._evict(self._size - self._capacity)

    def keys(self) -> list[int]:
        """Every block, the least recently used first; of one chain the last first."""
        runs = sorted(self._runs.values(), key=lambda run: (run.used, -run.start))
        return [key for run in runs for key in reversed(run.keys)]

    def _walk(self, keys: Sequence[int]) -> tuple[list[_Run], int]:
        """The runs that hold a chain's beginning, and how many blocks of it they hold."""
        path: list[_Run] = []
        at = 0
        while at < len(keys) and (run := self._runs.get(keys[at])) is not None:
            path.append(run)
            common = _common(run.keys, keys, at)
            at += common
            if common < len(run.keys):
                break
        return path, at

    def _split(self, run: _Run, at: int) -> _Run:
        """Cuts a run in two; returns the first part. `run` itself becomes the second, with the runs that follow it."""
        first = _Run(run.keys[:at], run.parent, run.start, run.used)
        first.branches = 1
        del run.keys[:at]
        run.parent, run.start = first, run.start + at
        self._runs[first.keys[0]] = first
        self._runs[run.keys[0]] = run
        return first

    def _append(self, last: _Run | None, new: Sequence[int]) -> _Run:
        """Adds blocks behind a run that was used just now; returns the run that they are in."""
        self._size += len(new)
        if last is not None and not last.branches:
            last.keys.extend(new)
            return last
        run = _Run(list(new), last, last.start + len(last.keys) if last is not None else 0, self._uses)
        self._runs[new[0]] = run
        if last is not None:
            last.branches += 1
        return run

    def _is_leaf(self, run: _Run) -> None:
        self._pushed += 1
        heappush(self._leaves, (run.used, self._pushed, run))
        if len(self._leaves) > 2 * len(self._runs) + _SLACK:
            self._leaves = [leaf for leaf in self._leaves if _holds(leaf)]
            heapify(self._leaves)

    def _evict(self, count: int) -> list[int]:
        gone: list[int] = []
        while len(gone) < count:
            leaf = heappop(self._leaves)
            if _holds(leaf):
                self._evict_from(leaf[2], count - len(gone), gone)
        return gone

    def _evict_from(self, run: _Run, count: int, gone: list[int]) -> None:
        """Drops up to `count` blocks from a leaf's end."""
        if count < len(run.keys):
            kept = len(run.keys) - count
            gone += reversed(run.keys[kept:])
            del run.keys[kept:]
            self._is_leaf(run)
        else:
            count = len(run.keys)
            gone += reversed(run.keys)
            # Chains whose keys collide share an entry: it is the later one's.
            if self._runs.get(run.keys[0]) is run:
                del self._runs[run.keys[0]]
            run.keys = []
            parent = run.parent
            if parent is not None:
                parent.branches -= 1
                if not parent.branches:
                    self._is_leaf(parent)
        self._size -= count


def _holds(leaf: tuple[int, int, _Run]) -> bool:
    """Whether a heap entry is up to date."""
    use, _, run = leaf
    return run.used == use and not run.branches and bool(run.keys)


def _common(run: list[int], keys: Sequence[int], at: int) -> int:
    """How many blocks of a run a chain has from `at` on; the first is known to be equal. Equal keys mean equal chains,
    so that one comparison covers all blocks before."""
    most = min(len(run), len(keys) - at)
    low, high = 1, _STRETCH  # the first `low` are common
    while high < most and run[high - 1] == keys[at + high - 1]:
        low, high = high, 2 * high
    if high >= most:
        if run[most - 1] == keys[at + most - 1]:
            return most
        high = most
    while low + 1 < high:
        middle = (low + high) // 2
        if run[middle - 1] == keys[at + middle - 1]:
            low = middle
        else:
            high = middle
    return low
