"""Translates vLLM's KV events. Pure.

vLLM publishes batches over ZMQ, numbered without gaps, as msgpack
(`vllm.distributed.kv_events.KVEventBatch`, 0.32 and 0.33). The types here have the fields that are
used; msgspec skips all others.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from schemas.frames import unpack_ids
from services.tokenization.block_keys import image_word
from services.worker.engine import BlockHash, BlocksRemoved, BlocksStored, CacheCleared, KvEvent

_DEVICE = "GPU"
"""The medium of the engine's own cache, also on a CPU. Blocks are offloaded to other media."""
_WHOLE_PROMPT = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of layers with blocks that hold a whole prompt. Other groups of a hybrid model keep windows
or states."""


class _Stored(Struct, tag="BlockStored"):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    medium: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    """For each block, what its hash covers besides the tokens: [hash, offset of the first token]
    for each image that the block overlaps, and the salt, in the first block only."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _Removed(Struct, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None


class _Cleared(Struct, tag="AllBlocksCleared"):
    pass


class _Batch(Struct, array_like=True):
    ts: float
    events: list[_Stored | _Removed | _Cleared]


_decode = msgspec.msgpack.Decoder(_Batch).decode


class KvTranslator:
    """Turns batches into `KvEvent`s, in order. vLLM also announces blocks that it finds in its
    cache, so that the index recovers from lost events."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._next: int | None = None
        self._other_groups: set[int | None] = set()

    def translate(self, number: int, payload: bytes) -> list[KvEvent]:
        """Translates the batch with this number. A gap in the numbers, or an unreadable batch,
        becomes a `CacheCleared`."""
        gap = self._next is not None and number != self._next
        self._next = number + 1
        translated: list[KvEvent] = [CacheCleared()] if gap else []
        try:
            batch = _decode(payload)
        except msgspec.DecodeError:
            return [CacheCleared()]
        for event in batch.events:
            if isinstance(event, _Cleared):
                translated.append(CacheCleared())
            elif event.medium in (None, _DEVICE):
                translated += (
                    self._stored(event) if isinstance(event, _Stored) else self._removed(event)
                )
        return translated

    def _stored(self, event: _Stored) -> Sequence[KvEvent]:
        size = self._block_tokens
        if event.kv_cache_spec_kind not in _WHOLE_PROMPT or event.block_size != size:
            self._other_groups.add(event.group_idx)
            return ()
        ids, parent = event.token_ids, event.parent_block_hash
        extras = [extra or [] for extra in event.extra_keys or [None] * len(event.block_hashes)]
        for at, extra in enumerate(extras):
            for image, offset in filter(_is_image, extra):
                if offset >= 0:  # otherwise it began in an earlier block
                    (ids[at * size + offset],) = unpack_ids(image_word(image))
        blocks = [
            (_hash(block), ids[at * size : (at + 1) * size])
            for at, block in enumerate(event.block_hashes)
        ]
        salt = next((key for key in extras[0] if not _is_image(key)), None) if extras else None
        return [BlocksStored(None if parent is None else _hash(parent), blocks, salt)]

    def _removed(self, event: _Removed) -> Sequence[KvEvent]:
        if event.group_idx in self._other_groups:
            return ()
        return [BlocksRemoved([_hash(block) for block in event.block_hashes])]


def _is_image(key: Any) -> bool:
    return isinstance(key, list)


def _hash(block: int | bytes) -> BlockHash:
    return block if isinstance(block, int) else block.hex()
