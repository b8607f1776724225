"""What a KV cache tells about itself: which blocks of tokens it holds. The same for every engine.

An engine's own block hashes only tie events together; whoever keeps an index across engines hashes the tokens himself.
"""

from typing import TypeAlias

from msgspec import Struct

BlockHash: TypeAlias = int | str


class BlocksStored(Struct, frozen=True):
    """Blocks that follow each other, behind `parent` (None: from the prompt's start), can be shared from now on."""

    parent: BlockHash | None
    blocks: list[tuple[BlockHash, list[int]]]
    """(the engine's hash, token ids of the whole block)."""
    salt: str | None = None
    rank: int = 0
    """Attention data-parallel rank: each has a cache of its own."""


class BlocksRemoved(Struct, frozen=True):
    """Blocks are gone."""

    hashes: list[BlockHash]
    rank: int = 0


class CacheCleared(Struct, frozen=True):
    """Nothing is known of the cache any more: it was emptied, or events were lost."""

    rank: int | None = None
    """None: all ranks."""


KvEvent: TypeAlias = BlocksStored | BlocksRemoved | CacheCleared
