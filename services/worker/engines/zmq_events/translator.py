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

from schemas.token_ids import unpack_ids
from services.tokenization.block_keys import image_word
from services.worker.kv.events import (
    BlockHash,
    BlocksOffloaded,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheUnpredictable,
    GroupRemoved,
    GroupStored,
    KvEvent,
    LayerGroup,
    OffloadedRemoved,
)

_DEVICE = "GPU"
"""The medium of the engine's own cache, also on a CPU. Blocks are offloaded to other media."""
_WHOLE_PROMPT = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of layers with blocks that hold a whole prompt."""
_WINDOWS = frozenset({"sliding_window", "sliding_window_mla"})
_STATES = "mamba"
"""The kind of all recurrent layers."""


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
    kv_cache_spec_sliding_window: int | None = None
    """Tokens of the window."""


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


class ZmqKvTranslator:
    """Turns batches into `KvEvent`s, in order.

    In the step that caches a prompt's first blocks, vLLM publishes an event of each group of
    layers, also of those that keep no block yet, in one batch (`BlockPool.cache_full_blocks` of
    `vllm/v1/core/block_pool.py`, 0.32.0). So all groups are known with the first blocks. A hash is
    that of all tokens up to a block's end, and is equal in all groups. vLLM announces blocks that
    it finds in its cache only for requests with `kv_cache_report_mode`, which the worker never
    sends (`KVCacheManager.get_computed_blocks`), and SGLang never.
    """

    def __init__(self, block_tokens: int) -> None:
        """`block_tokens`: of the layers with full attention."""
        self._block_tokens = block_tokens
        self._next: int | None = None
        self._main: int | None = None
        """The first group with full attention."""
        self._groups: dict[int | None, LayerGroup] = {}
        """The other groups."""

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
        translated += self._new_groups([event for event in batch.events if _is_on_device(event)])
        for event in batch.events:
            if isinstance(event, _Cleared):
                translated.append(CacheCleared())
            elif not _is_on_device(event):
                translated.append(_offloaded(event))
            elif isinstance(event, _Stored):
                translated += self._stored(event)
            else:
                translated.append(self._removed(event))
        return translated

    def _new_groups(self, events: Sequence[_Stored | _Removed | _Cleared]) -> list[KvEvent]:
        """Finds the groups of layers beside the first one with full attention."""
        found: list[KvEvent] = []
        for event in events:
            if not isinstance(event, _Stored) or event.group_idx in self._groups:
                continue
            if self._main is None and self._holds_whole_prompts(event):
                self._main = event.group_idx
            if event.group_idx == self._main or self._is_part(event):
                continue
            group = self._describe(event)
            if group is None:
                kind = event.kv_cache_spec_kind or "unknown"
                reason = f"it has layers of the kind {kind} in blocks of {event.block_size} tokens"
                return [CacheUnpredictable(reason)]
            self._groups[event.group_idx] = group
            found.append(GroupStored(group, []))
        return found

    def _holds_whole_prompts(self, event: _Stored) -> bool:
        return event.kv_cache_spec_kind in _WHOLE_PROMPT and event.block_size == self._block_tokens

    def _is_part(self, event: _Stored) -> bool:
        """Whether an event is of the beginning of a block, which vLLM also finds if its hashes are
        finer than its blocks (`cache_partial_block`). Such beginnings are not predicted."""
        return (
            event.kv_cache_spec_kind in _WHOLE_PROMPT
            and len(event.block_hashes) == 1
            and event.block_size < self._block_tokens
        )

    def _describe(self, event: _Stored) -> LayerGroup | None:
        """Returns the group of an event; None: what it needs is not known here."""
        size = event.block_size
        window = event.kv_cache_spec_sliding_window
        number = event.group_idx or 0
        if self._holds_whole_prompts(event):
            return LayerGroup(number, size, needed=None)
        if event.kv_cache_spec_kind == _STATES:
            return LayerGroup(number, size, needed=1)
        if event.kv_cache_spec_kind in _WINDOWS and window and size % self._block_tokens == 0:
            # computed like `SlidingWindowManager._contiguous_blocks_for_hit`
            return LayerGroup(number, size, needed=max(-(-(window - 1) // size), 1))
        return None

    def _stored(self, event: _Stored) -> Sequence[KvEvent]:
        group = self._groups.get(event.group_idx)
        if group is not None:
            return [GroupStored(group, [_hash(block) for block in event.block_hashes])]
        if not self._holds_whole_prompts(event):
            return ()
        parent: BlockHash | None = None
        if event.parent_block_hash is not None:
            parent = _hash(event.parent_block_hash)
        salt = _salt(event)
        if event.lora_name is not None and parent is None and salt is None:
            return ()  # another client's: our salts of adapters have its name
        return [BlocksStored(parent, self._blocks(event), salt)]

    def _blocks(self, event: _Stored) -> list[tuple[BlockHash, list[int]]]:
        """Each block's hash and tokens, with the words of images."""
        size = self._block_tokens
        ids = event.token_ids
        for number, extra in enumerate(event.extra_keys or ()):
            _put_images(ids, number * size, extra or ())
        return [
            (_hash(block), ids[number * size : (number + 1) * size])
            for number, block in enumerate(event.block_hashes)
        ]

    def _removed(self, event: _Removed) -> KvEvent:
        hashes = [_hash(block) for block in event.block_hashes]
        group = self._groups.get(event.group_idx)
        if group is not None:
            return GroupRemoved(group.number, hashes)
        return BlocksRemoved(hashes)


def _is_on_device(event: _Stored | _Removed | _Cleared) -> bool:
    return isinstance(event, _Cleared) or event.medium in (None, _DEVICE)


def _offloaded(event: _Stored | _Removed) -> KvEvent:
    """Translates an event of another memory than the cache's. Only its hashes count: by default
    vLLM leaves everything else out (`OffloadingEventsTracker` of `vllm/distributed/kv_transfer/
    kv_connector/v1/offloading/events.py`, 0.32.0), and they are those of the cache's blocks."""
    hashes = [_hash(block) for block in event.block_hashes]
    return BlocksOffloaded(hashes) if isinstance(event, _Stored) else OffloadedRemoved(hashes)


def _salt(event: _Stored) -> str | None:
    """The salt of the prompt; None: it has none, or the event does not have its first block."""
    extra = event.extra_keys[0] if event.extra_keys else None
    names = [key for key in extra or () if not _is_image(key)]
    if event.lora_name is not None:
        del names[:1]
    return event.cache_salt or next(iter(names), None)


def _put_images(ids: list[int], start: int, extra: Sequence[Any]) -> None:
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
