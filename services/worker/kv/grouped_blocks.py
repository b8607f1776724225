"""Indexes the blocks of a model with several groups of layers, and where prompts can be cut. Pure.

Layers with full attention keep every block of a prompt. The other groups (`LayerGroup`) keep states
or windows at few places, so that an engine reuses the longest beginning of a prompt for which all
groups have what they need, in whole blocks of every group. Here the place where such a beginning
ends is an *end*: the key of its last block. vLLM 0.32.0 finds ends so in
`HybridKVCacheCoordinator.find_longest_cache_hit` (`vllm/v1/core/kv_cache_coordinator.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import lcm

from schemas.frames import pack_ids
from services.tokenization.block_keys import block_keys, root
from services.worker.engine import BlockHash, BlocksStored, LayerGroup


@dataclass(slots=True, eq=False)
class _Block:
    """A block of the layers with full attention."""

    hash: BlockHash
    key: int
    number: int
    """1, 2, 3 … from the prompt's start."""
    parent: "_Block | None"
    held: bool
    """The cache has the block and all before it."""
    followers: "list[_Block]" = field(default_factory=list)


class GroupedBlocks:
    """The blocks of all groups in one engine without ranks."""

    def __init__(self, block_tokens: int, recomputed: int) -> None:
        """`block_tokens`: of the layers with full attention; `recomputed`:
        `EngineInfo.recomputed_blocks`."""
        self._block_tokens = block_tokens
        self._recomputed = recomputed
        self._groups: dict[int, LayerGroup] = {}
        self._stored: dict[int, set[BlockHash]] = {}
        """The blocks of each group."""
        self._blocks: dict[BlockHash, _Block] = {}
        self._by_key: dict[int, _Block] = {}
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
        held = 0
        while held < most and self._is_held(keys[held]):
            held += 1
        for count in range(held - self._recomputed, 0, -1):
            if keys[count - 1] in self._ends:
                return count
        return 0

    # -- events
    # ----------------------------------------------------------------------------------------------

    def store(self, event: BlocksStored) -> None:
        """Adds blocks of the layers with full attention."""
        parent = None
        if event.parent is not None:
            parent = self._blocks.get(event.parent)
            if parent is None:
                return  # its event was lost, so the keys cannot be computed
        for block, ids in event.blocks:
            known = self._blocks.get(block)
            if known is None or known.parent is not parent or not known.held:
                known = self._add(block, ids, parent, event.salt)
            self._check(known)
            parent = known

    def remove(self, hashes: Sequence[BlockHash]) -> None:
        """Removes blocks of the layers with full attention. Those that follow are of no use
        without them."""
        for block in hashes:
            removed = self._blocks.pop(block, None)
            if removed is None:
                continue
            if self._by_key.get(removed.key) is removed:
                del self._by_key[removed.key]
            if removed.parent is not None:
                removed.parent.followers.remove(removed)
            lost = [removed]
            while lost:
                following = lost.pop()
                following.held = False
                self._check(following)
                lost += following.followers

    def store_in_group(self, group: LayerGroup, hashes: Sequence[BlockHash]) -> None:
        """Adds blocks of another group. A new group makes all earlier ends invalid."""
        if group.number not in self._groups:
            self.clear()
            self._groups[group.number] = group
            self._stored[group.number] = set()
            tokens = lcm(self._block_tokens, *(one.block_tokens for one in self._groups.values()))
            self._alignment = tokens // self._block_tokens
        self._stored[group.number].update(hashes)
        self._check_all(hashes)

    def remove_from_group(self, number: int, hashes: Sequence[BlockHash]) -> None:
        """Removes blocks of another group."""
        group = self._groups.get(number)
        if group is None:
            return
        self._stored[number].difference_update(hashes)
        reach = group.needed * max(group.block_tokens // self._block_tokens, 1)
        for block in hashes:
            near = [self._blocks[block]] if block in self._blocks else []
            for _ in range(reach):
                for changed in near:
                    self._check(changed)
                near = [following for changed in near for following in changed.followers]

    # -- ends
    # ----------------------------------------------------------------------------------------------

    def _add(
        self, block: BlockHash, ids: list[int], parent: _Block | None, salt: str | None
    ) -> _Block:
        before = root(salt) if parent is None else parent.key
        (key,) = block_keys(pack_ids(ids), len(ids), parent=before)
        number = 1 if parent is None else parent.number + 1
        added = _Block(block, key, number, parent, held=parent is None or parent.held)
        if parent is not None:
            parent.followers.append(added)
        replaced = self._blocks.get(block)
        if replaced is not None and replaced.parent is not None:
            replaced.parent.followers.remove(replaced)
        self._blocks[block] = added
        self._by_key[key] = added
        return added

    def _is_held(self, key: int) -> bool:
        block = self._by_key.get(key)
        return block is not None and block.held

    def _check_all(self, hashes: Sequence[BlockHash]) -> None:
        for block in hashes:
            if block in self._blocks:
                self._check(self._blocks[block])

    def _check(self, block: _Block) -> None:
        """Finds out whether a block is an end now."""
        is_end = block.held and block.number % self._alignment == 0
        for number, group in self._groups.items():
            is_end = is_end and self._group_allows(group, self._stored[number], block)
        self._set_end(block.key, is_end)

    def _group_allows(self, group: LayerGroup, stored: set[BlockHash], end: _Block) -> bool:
        """Whether a group has the blocks that it needs at this end."""
        if group.needed > 1 and self._recomputed:
            return False  # its window would have to go further than the end
        step = max(group.block_tokens // self._block_tokens, 1)
        block: _Block | None = end
        for _ in range(group.needed):
            if block is None:
                return True  # the beginning is shorter than the window
            if block.hash not in stored:
                return False
            for _ in range(step):
                block = None if block is None else block.parent
        return True

    def _set_end(self, key: int, is_end: bool) -> None:
        if is_end == (key in self._ends):
            return
        self._changes[key] = is_end
        if is_end:
            self._ends[key] = None
        else:
            del self._ends[key]
