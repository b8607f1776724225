"""The changes of an engine's KV cache, as `Engine.kv_events` yields them."""

from typing import TypeAlias

from msgspec import Struct

BlockHash: TypeAlias = int | str
"""An engine's own hash, which only relates events to each other: indexes across engines hash the
tokens."""


class BlocksStored(Struct, frozen=True):
    """Consecutive blocks, after `parent` (None: from the prompt's start), can be shared from now
    on."""

    parent: BlockHash | None
    blocks: list[tuple[BlockHash, list[int]]]
    """Each block's hash and all its token ids."""
    salt: str | None = None
    rank: int = 0
    """Attention data-parallel rank: each has its own cache."""


class BlocksRemoved(Struct, frozen=True):
    """Blocks were removed."""

    hashes: list[BlockHash]
    rank: int = 0


class CacheCleared(Struct, frozen=True):
    """The content of the cache is unknown or empty: it was cleared, or events were lost."""

    rank: int | None = None
    """None: all ranks."""


class LayerGroup(Struct, frozen=True):
    """Layers with blocks of their own, besides those of `BlocksStored`: the states of a recurrent
    model, a sliding window, or more layers with full attention. A beginning of a prompt can be
    reused only where every group has the blocks that it needs."""

    number: int
    block_tokens: int
    needed: int | None
    """The blocks that must be there at the end of the beginning, or all of them if it has fewer: 1
    for states, those of the window otherwise. None: all."""


class GroupStored(Struct, frozen=True):
    """Blocks of a group can be shared from now on. A group's first event is applied before the
    `BlocksStored` of the same prompt."""

    group: LayerGroup
    hashes: list[BlockHash]
    """The hashes of the blocks of `BlocksStored` that end at the same tokens; they may be none."""


class GroupRemoved(Struct, frozen=True):
    """Blocks of a group were removed."""

    group: int
    hashes: list[BlockHash]


class BlocksOffloaded(Struct, frozen=True):
    """A slower memory, from which the engine loads them again, has blocks of `BlocksStored`, too.
    They may have left the cache since."""

    hashes: list[BlockHash]


class OffloadedRemoved(Struct, frozen=True):
    """Blocks left the slower memory."""

    hashes: list[BlockHash]


class CacheUnpredictable(Struct, frozen=True):
    """The events of this engine do not show which blocks prompts can reuse."""

    reason: str


KvEvent: TypeAlias = (
    BlocksStored
    | BlocksRemoved
    | CacheCleared
    | GroupStored
    | GroupRemoved
    | BlocksOffloaded
    | OffloadedRemoved
    | CacheUnpredictable
)
