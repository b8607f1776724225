"""Blocks that follow one another, and which of them groups of layers lack. Pure.

Prompts with common beginnings make a tree of blocks. It is kept in chains: the first block that
follows the last one of a chain continues it, any other starts a chain of its own. So the nearest
block that a group lacks is one binary search in each chain, however long the chains are.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from services.worker.kv.events import BlockHash


@dataclass(slots=True, eq=False)
class Block:
    """A block of the layers with full attention."""

    hash: BlockHash
    key: int
    chain: "BlockChain"
    number: int
    """1, 2, 3 … from the prompt's start."""
    parent: "Block | None"
    copies: int = 0
    """How many the cache has; 0: only blocks that follow."""
    is_cached: bool = False
    """All layers with full attention have the block and those before it."""
    followers: "dict[BlockHash, Block]" = field(default_factory=dict)


class BlockChain:
    """Blocks with successive numbers. Each follows the one before it."""

    def __init__(self, parent: Block | None, groups: Iterable[int]) -> None:
        """`parent`: the block of another chain that the first one follows; None: the first one
        begins a prompt. `groups`: those that may lack blocks."""
        self.parent = parent
        self.parent_number = 0 if parent is None else parent.number
        self.blocks: list[Block] = []
        self._branches: list[BlockChain] = []
        """Chains that follow blocks of this one, by `parent_number`."""
        self._lacking: dict[int, list[int]] = {group: [] for group in groups}
        """The numbers of the blocks that each group lacks, in order."""
        if parent is not None:
            insort(parent.chain._branches, self, key=_PARENT_NUMBER)

    @property
    def end(self) -> int:
        """The number after that of the last block."""
        return self.parent_number + len(self.blocks) + 1

    def block(self, number: int) -> Block:
        """Returns the block with this number."""
        return self.blocks[number - self.parent_number - 1]

    def remove_last(self) -> None:
        """Removes the last block, which no other one follows."""
        last = self.blocks.pop().number
        for lacking in self._lacking.values():
            if lacking and lacking[-1] == last:
                lacking.pop()
        if self.parent is not None and not self.blocks:
            self.parent.chain._branches.remove(self)

    def branches(self, start: int, end: int) -> "list[BlockChain]":
        """Returns the chains that follow blocks with the numbers from `start` to before `end`."""
        first = bisect_left(self._branches, start, key=_PARENT_NUMBER)
        return self._branches[first : bisect_left(self._branches, end, key=_PARENT_NUMBER)]

    # -- what groups lack

    def note(self, group: int, number: int, lacks: bool) -> None:
        """Notes whether a group lacks a block."""
        lacking = self._lacking[group]
        place = bisect_left(lacking, number)
        is_noted = lacking[place : place + 1] == [number]
        if lacks and not is_noted:
            lacking.insert(place, number)
        elif is_noted and not lacks:
            del lacking[place]

    def last_lacking(self, group: int, number: int, first: int) -> int:
        """Returns the greatest number from `first` to `number` of a block that the group lacks,
        also in the chains that this one follows; 0: it lacks none."""
        chain = self
        while number >= first:
            lacking = chain._lacking[group]
            place = bisect_right(lacking, number)
            if place:
                return lacking[place - 1] if lacking[place - 1] >= first else 0
            if chain.parent is None:
                return 0
            number = chain.parent_number
            chain = chain.parent.chain
        return 0

    def next_lacking(self, group: int, number: int) -> int:
        """Returns the least number above `number` of a block that the group lacks; `end`: it lacks
        none."""
        lacking = self._lacking[group]
        place = bisect_right(lacking, number)
        return lacking[place] if place < len(lacking) else self.end


_PARENT_NUMBER = attrgetter("parent_number")
