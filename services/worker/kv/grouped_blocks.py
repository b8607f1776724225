"""Indexes the blocks of a model with several groups of layers, and where prompts can be cut. Pure.

Layers with full attention keep every block of a prompt. The other groups (`LayerGroup`) keep states
or windows at few places, so that an engine reuses the longest beginning of a prompt for which all
groups have what they need, in whole blocks of every group. Here the place where such a beginning
ends is an *end*: the key of its last block. vLLM 0.32.0 finds ends so in
`HybridKVCacheCoordinator.find_longest_cache_hit` (`vllm/v1/core/kv_cache_coordinator.py`).

A prompt that cannot be reused is computed again, though some groups have its blocks. The engine
then has copies of these, and reports each of them, stored and removed (`BlockHashToBlockMap` of
`vllm/v1/core/block_pool.py`). So copies are counted.
"""

from collections import Counter
from collections.abc import Sequence
from math import lcm

from schemas.token_ids import pack_ids
from services.tokenization.block_keys import block_keys, root
from services.worker.kv.block_chains import Block, BlockChain
from services.worker.kv.events import BlockHash, BlocksStored, LayerGroup


class GroupedBlocks:
    """The blocks of all groups in one engine without ranks."""

    def __init__(self, block_tokens: int, recomputed: int) -> None:
        """`block_tokens`: of the layers with full attention; `recomputed`:
        `EngineInfo.recomputed_blocks`."""
        self._block_tokens = block_tokens
        self._recomputed = recomputed
        self._groups: dict[int, LayerGroup] = {}
        self._stored: dict[int, Counter[BlockHash]] = {}
        """The copies of each group's blocks."""
        self._blocks: dict[BlockHash, Block] = {}
        self._by_key: dict[int, Block] = {}
        self._ends: dict[int, None] = {}
        self._alignment = 1
        """The number of an end's block is a multiple of this."""
        self._changes: dict[int, bool] = {}

    def ends(self) -> list[int]:
        """Returns the keys at which a prompt can be cut, the oldest first."""
        return list(self._ends)

    def take_changes(self) -> dict[int, bool]:
        """Returns what has changed since the last call: by key whether it is an end now."""
        changes = self._changes
        self._changes = {}
        return changes

    def clear(self) -> None:
        """Removes all blocks, and keeps the groups."""
        for key in list(self._ends):
            self._set_end(key, False)
        self._blocks.clear()
        self._by_key.clear()
        for stored in self._stored.values():
            stored.clear()

    def count_reusable(self, keys: Sequence[int], most: int) -> int:
        """Returns how many of a prompt's first `most` blocks can be reused."""
        cached = 0
        while cached < most and self._is_cached(keys[cached]):
            cached += 1
        for count in range(cached - self._recomputed, 0, -1):
            if keys[count - 1] in self._ends:
                return count
        return 0

    # -- events

    def store(self, event: BlocksStored) -> None:
        """Adds blocks of the layers with full attention."""
        parent = None
        if event.parent is not None:
            parent = self._blocks.get(event.parent)
            if parent is None:
                return  # its event was lost, so the keys cannot be computed
        for hash_, ids in event.blocks:
            block = self._blocks.get(hash_)
            if block is None:
                block = self._add(hash_, ids, parent, event.salt)
            block.copies += 1
            self._spread(block)
            parent = block

    def remove(self, hashes: Sequence[BlockHash]) -> None:
        """Removes blocks of the layers with full attention. Those that follow are of no use
        without them."""
        for hash_ in hashes:
            block = self._blocks.get(hash_)
            if block is None or not block.copies:
                continue
            block.copies -= 1
            if not block.copies:
                self._spread(block)
                self._prune(block)

    def store_in_group(self, group: LayerGroup, hashes: Sequence[BlockHash]) -> None:
        """Adds blocks of another group. A new group makes all earlier ends invalid."""
        if group.number not in self._groups:
            self.clear()
            self._groups[group.number] = group
            self._stored[group.number] = Counter()
            sizes = (known.block_tokens for known in self._groups.values())
            self._alignment = lcm(self._block_tokens, *sizes) // self._block_tokens
        stored = self._stored[group.number]
        new = [hash_ for hash_ in hashes if hash_ not in stored]
        stored.update(hashes)
        self._changed_in(group, new)

    def remove_from_group(self, number: int, hashes: Sequence[BlockHash]) -> None:
        """Removes blocks of another group."""
        group = self._groups.get(number)
        if group is None:
            return
        stored = self._stored[number]
        stored.subtract(hash_ for hash_ in hashes if hash_ in stored)
        gone = [hash_ for hash_ in hashes if stored[hash_] <= 0]
        for hash_ in gone:
            del stored[hash_]
        self._changed_in(group, gone)

    # -- ends

    def _add(
        self, hash_: BlockHash, ids: list[int], parent: Block | None, salt: str | None
    ) -> Block:
        before = root(salt) if parent is None else parent.key
        (key,) = block_keys(pack_ids(ids), len(ids), parent=before)
        if parent is not None and parent is parent.chain.blocks[-1]:
            chain = parent.chain
        else:
            chain = BlockChain(parent, self._groups)
        block = Block(hash_, key, chain, chain.end, parent)
        chain.blocks.append(block)
        for group in self._groups.values():
            if group.needed is not None:
                self._note(group, block)
        if parent is not None:
            parent.followers[hash_] = block
        self._blocks[hash_] = block
        self._by_key[key] = block
        return block

    def _is_cached(self, key: int) -> bool:
        block = self._by_key.get(key)
        return block is not None and block.is_cached

    def _spread(self, changed: Block) -> None:
        """Finds out which blocks are cached from a changed one on."""
        blocks = [changed]
        while blocks:
            block = blocks.pop()
            is_cached = block.copies > 0 and (block.parent is None or block.parent.is_cached)
            for number, group in self._groups.items():
                is_cached = is_cached and (
                    group.needed is not None or block.hash in self._stored[number]
                )
            if is_cached != block.is_cached:
                block.is_cached = is_cached
                blocks += block.followers.values()
            self._check(block)

    def _prune(self, block: Block) -> None:
        """Forgets a block that the cache does not have, and those before it, unless the cache has
        one that follows."""
        last: Block | None = block
        while last is not None and not last.copies and not last.followers:
            del self._blocks[last.hash]
            if self._by_key.get(last.key) is last:
                del self._by_key[last.key]
            if last.parent is not None:
                del last.parent.followers[last.hash]
            last.chain.remove_last()
            last = last.parent

    def _changed_in(self, group: LayerGroup, hashes: Sequence[BlockHash]) -> None:
        """Finds out again what depends on these blocks of a group."""
        for hash_ in hashes:
            block = self._blocks.get(hash_)
            if block is None:
                continue
            if group.needed is None:
                self._spread(block)
            elif self._note(group, block):
                self._check_windows(group, block)

    def _note(self, group: LayerGroup, block: Block) -> bool:
        """Notes whether a group lacks a block. Returns whether the group can have it: its own
        blocks may be longer."""
        if block.number % _blocks_in(group, self._block_tokens):
            return False
        lacks = block.hash not in self._stored[group.number]
        block.chain.note(group.number, block.number, lacks)
        return True

    def _check_windows(self, group: LayerGroup, changed: Block) -> None:
        """Finds out again which blocks are ends, among those with a changed one in their window and
        with all others that the window needs: with a window of 4 blocks, C the changed one, and X
        those that the group lacks, these are 6 and 7.

            1   2   3   4   5   6   7   8   9
                X           C           X
        """
        reach = _reach(group, self._block_tokens)
        number, chain = changed.number, changed.chain
        lacking = chain.last_lacking(group.number, number - 1, number - reach + 1)
        first_end = lacking + reach if lacking else number
        chains = [chain]
        while chains:
            chain = chains.pop()
            limit = min(number + reach, chain.next_lacking(group.number, number))
            start = max(first_end, chain.parent_number + 1)
            start += -start % self._alignment
            for place in range(start, limit, self._alignment):
                self._check(chain.block(place))
            chains += chain.branches(number, limit)

    def _check(self, block: Block) -> None:
        """Finds out whether a block is an end now."""
        is_end = block.is_cached and block.number % self._alignment == 0
        for group in self._groups.values():
            is_end = is_end and self._group_allows(group, block)
        self._set_end(block.key, is_end)

    def _group_allows(self, group: LayerGroup, end: Block) -> bool:
        """Whether a group has the blocks that it needs at this end."""
        if group.needed is None:
            return True  # else the end would not be cached
        if group.needed > 1 and self._recomputed:
            return False  # its window would have to go further than the end
        first = max(end.number - _reach(group, self._block_tokens) + 1, 1)
        return not end.chain.last_lacking(group.number, end.number, first)

    def _set_end(self, key: int, is_end: bool) -> None:
        if is_end == (key in self._ends):
            return
        self._changes[key] = is_end
        if is_end:
            self._ends[key] = None
        else:
            del self._ends[key]


def _reach(group: LayerGroup, block_tokens: int) -> int:
    """Returns how many blocks of full attention, of `block_tokens` each, are as long as the group's
    window."""
    return (group.needed or 0) * _blocks_in(group, block_tokens)


def _blocks_in(group: LayerGroup, block_tokens: int) -> int:
    """Returns how many blocks of full attention are as long as one of the group."""
    return max(group.block_tokens // block_tokens, 1)
