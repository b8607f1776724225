"""Translates vLLM's KV events. Pure.

vLLM publishes batches over ZMQ, numbered without gaps, as msgpack
(`vllm.distributed.kv_events.KVEventBatch`, 0.32 and 0.33), and SGLang publishes the same
(`sglang/srt/disaggregation/kv_events.py`, 0.5.20 to 0.5.23). The types here have the fields that
are used; msgspec skips all others.
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
    """For each block, what its hash covers besides the tokens: the LoRA adapter's name, [hash,
    offset of the first token] for each image that the block overlaps, and the salt, in the first
    block only."""
    cache_salt: str | None = None
    """SGLang's: the salt of all blocks."""
    lora_name: str | None = None
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


class VllmKvTranslator:
    """Turns batches into `KvEvent`s, in order. vLLM also announces blocks that it finds in its
    cache, so that the index recovers from lost events; SGLang does not."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._next: int | None = None
        self._other_groups: set[int | None] = set()

    def translate(self, number: int, payload: bytes) -> list[KvEvent]:
        """Translates the batch with this number. A gap in the numbers, or an unreadable batch,
        becomes a `CacheCleared`."""
        translated: list[KvEvent] = []
        if self._next not in (None, number):
            translated.append(CacheCleared())
        self._next = number + 1
        try:
            batch = _decode(payload)
        except msgspec.DecodeError:
            return [CacheCleared()]
        for event in batch.events:
            if isinstance(event, _Cleared):
                translated.append(CacheCleared())
            elif event.medium not in (None, _DEVICE):
                continue
            elif isinstance(event, _Stored):
                translated += self._stored(event)
            else:
                translated += self._removed(event)
        return translated

    def _stored(self, event: _Stored) -> Sequence[KvEvent]:
        size = self._block_tokens
        if event.kv_cache_spec_kind not in _WHOLE_PROMPT or event.block_size != size:
            self._other_groups.add(event.group_idx)
            return ()
        extras = [extra or [] for extra in event.extra_keys or ()]
        ids = event.token_ids
        for number, extra in enumerate(extras):
            _put_images(ids, number * size, extra)
        blocks = [
            (_hash(block), ids[number * size : (number + 1) * size])
            for number, block in enumerate(event.block_hashes)
        ]
        parent: BlockHash | None = None
        if event.parent_block_hash is not None:
            parent = _hash(event.parent_block_hash)
        salts = [key for key in extras[0] if not _is_image(key)] if extras else []
        if event.lora_name is not None:
            del salts[:1]
        salt = event.cache_salt or next(iter(salts), None)
        if event.lora_name is not None and parent is None and salt is None:
            return ()  # another client's: our salts of adapters have its name
        return [BlocksStored(parent, blocks, salt)]

    def _removed(self, event: _Removed) -> Sequence[KvEvent]:
        if event.group_idx in self._other_groups:
            return ()
        return [BlocksRemoved([_hash(block) for block in event.block_hashes])]


def _put_images(ids: list[int], start: int, extra: list[Any]) -> None:
    """Puts the words of images into the ids of a block, which begins at `start`: where each image
    begins."""
    for key in extra:
        if not _is_image(key):
            continue
        image, offset = key
        if offset >= 0:  # otherwise it began in an earlier block
            (ids[start + offset],) = unpack_ids(image_word(image))


def _is_image(key: Any) -> bool:
    return isinstance(key, list)


def _hash(block: int | bytes) -> BlockHash:
    return block if isinstance(block, int) else block.hex()
