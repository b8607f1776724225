"""What this worker's KV cache holds, by the keys that all workers share. Pure.

Two sources. An engine with KV events tells of every block: the book keeps its hash beside our key. Of any other engine
with a prefix cache the book assumes what such a cache does: the blocks of a turn's prompt are there when it is taken,
those of its output when it ends, and the least recently used go when the capacity is reached.
"""

from collections.abc import Sequence

from msgspec import Struct

from schemas.frames import pack_ids
from services.runtime.block_keys import block_keys, root
from services.worker.held_blocks import HeldBlocks
from services.worker.kv_events import BlockHash, BlocksRemoved, BlocksStored, CacheCleared, KvEvent

DEFAULT_BLOCKS = 65536
"""Assumed where an engine does not say what it holds."""


class Changes(Struct):
    """What became different since it was last asked. Everything `cleared` comes first, then removals."""

    cleared: bool = False
    stored: dict[int, None] = {}
    removed: dict[int, None] = {}

    def __bool__(self) -> bool:
        return self.cleared or bool(self.stored) or bool(self.removed)


class KvBook:
    """The blocks of one worker."""

    def __init__(self, block_tokens: int, capacity_tokens: int | None) -> None:
        self.block_tokens = block_tokens
        self._assumed = HeldBlocks(max(1, capacity_tokens // block_tokens) if capacity_tokens else DEFAULT_BLOCKS)
        self._held: dict[int, int] = {}
        """Key → how many ranks hold the block, as the engine tells."""
        self._own: dict[tuple[int, BlockHash], int] = {}
        """(rank, the engine's hash) → key."""
        self._changes = Changes()
        self.followed = True
        """Somebody wants to hear of changes; else they are not noted."""

    def __len__(self) -> int:
        return len(self._held) + len(self._assumed)

    def keys(self) -> list[int]:
        """Every block that is held; of those that are assumed the least recently used first."""
        return [*self._held, *self._assumed.keys()]

    def take_changes(self) -> Changes:
        """What is new since the last call."""
        changes, self._changes = self._changes, Changes()
        return changes

    # -- an engine that tells -----------------------------------------------------------------------------------------

    def event(self, event: KvEvent) -> None:
        """The engine's word."""
        if isinstance(event, BlocksStored):
            self._stored(event)
        elif isinstance(event, BlocksRemoved):
            for block in event.hashes:
                key = self._own.pop((event.rank, block), None)
                if key is not None:
                    self._release(key)
        else:
            self._cleared(event)

    def _stored(self, event: BlocksStored) -> None:
        if event.parent is None:
            parent = root(event.salt)
        else:
            known = self._own.get((event.rank, event.parent))
            if known is None:
                return  # its events were lost: nobody can say what it follows
            parent = known
        for block, ids in event.blocks:
            parent = next(block_keys(pack_ids(ids), len(ids), parent=parent))
            if self._own.get((event.rank, block)) == parent:
                continue
            self._own[event.rank, block] = parent
            self._hold(parent)

    def _cleared(self, event: CacheCleared) -> None:
        if event.rank is None:
            self._own.clear()
            self._held.clear()
            self._changes = Changes(cleared=True)
            return
        for rank, block in [own for own in self._own if own[0] == event.rank]:
            self._release(self._own.pop((rank, block)))

    def _hold(self, key: int) -> None:
        ranks = self._held[key] = self._held.get(key, 0) + 1
        if ranks == 1:
            self._came((key,))

    def _release(self, key: int) -> None:
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
            self._went((key,))

    # -- an engine that does not --------------------------------------------------------------------------------------

    def used(self, keys: Sequence[int]) -> None:
        """The blocks of a prompt, or of a turn that ended, were computed or found just now."""
        came, went = self._assumed.use(keys)
        self._came(came)
        self._went(went)

    def _came(self, keys: Sequence[int]) -> None:
        if self.followed:
            _note(keys, self._changes.stored, unless=self._changes.removed)

    def _went(self, keys: Sequence[int]) -> None:
        if self.followed:
            _note(keys, self._changes.removed, unless=self._changes.stored)


def _note(keys: Sequence[int], changed: dict[int, None], *, unless: dict[int, None]) -> None:
    """Blocks that come and go between two looks did not change."""
    if not unless or unless.keys().isdisjoint(keys):
        changed.update(dict.fromkeys(keys))
        return
    for key in keys:
        if key in unless:
            del unless[key]
        else:
            changed[key] = None
