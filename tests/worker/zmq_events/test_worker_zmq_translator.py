"""vLLM's KV events, as they are packed, become the contract's."""

from typing import Any

import msgspec
import pytest

from schemas.events import PromptImage
from schemas.token_ids import pack_ids
from services.tokenization.block_keys import block_keys, with_images
from services.worker.engines.zmq_events.translator import ZmqKvTranslator
from services.worker.kv.blocks import KvBlockIndex
from services.worker.kv.events import (
    BlocksOffloaded,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    GroupRemoved,
    GroupStored,
    LayerGroup,
    OffloadedRemoved,
)
from tests.worker.fake_vllm import stored

BLOCK = 4


def packed(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def removed(*blocks: int | bytes, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(blocks), "medium": "GPU", **more}


@pytest.fixture
def translator() -> ZmqKvTranslator:
    return ZmqKvTranslator(BLOCK)


def test_blocks_come_with_their_tokens_parent_and_salt(translator: ZmqKvTranslator) -> None:
    first = stored(11, None, [1, 2, 3, 4], "tenant")
    both = {**stored(12, 11, list(range(8)), None), "block_hashes": [12, 13], "block_size": 4}
    both["extra_keys"] = [None, None]
    assert translator.translate(0, packed(first, both, removed(13))) == [
        BlocksStored(None, [(11, [1, 2, 3, 4])], "tenant"),
        BlocksStored(11, [(12, [0, 1, 2, 3]), (13, [4, 5, 6, 7])]),
        BlocksRemoved([13]),
    ]


def test_blocks_of_sglang_have_their_salt_in_each_event(translator: ZmqKvTranslator) -> None:
    """As `disaggregation/kv_events.py` of 0.5.23 packs them: fields without a value are omitted."""
    first: dict[str, Any] = {"type": "BlockStored", "block_hashes": [-5], "parent_block_hash": None}
    first |= {"token_ids": [1, 2, 3, 4], "block_size": 4, "lora_id": None, "medium": "GPU"}
    more = first | {"block_hashes": [-6], "parent_block_hash": -5, "session_id": "s"}
    host = first | {"medium": "CPU_PINNED"}
    salted = [event | {"cache_salt": "tenant"} for event in (first, more, host)]
    gone = {"type": "BlockRemoved", "block_hashes": [-6], "medium": "GPU"}
    assert translator.translate(0, packed(*salted, gone, first)) == [
        BlocksStored(None, [(-5, [1, 2, 3, 4])], "tenant"),
        BlocksStored(-5, [(-6, [1, 2, 3, 4])], "tenant"),
        BlocksOffloaded([-5]),
        BlocksRemoved([-6]),
        BlocksStored(None, [(-5, [1, 2, 3, 4])]),
    ]


@pytest.mark.parametrize(("at", "salt"), [((0, 3), "tenant"), ((1, 7), None), ((4, 11), None)])
def test_the_keys_of_images_are_those_of_the_preprocessor(
    translator: ZmqKvTranslator, at: tuple[int, int], salt: str | None
) -> None:
    images = [PromptImage(digit * 40, start, 3) for digit, start in zip("7f", at, strict=True)]
    ids = list(range(16))
    extras: list[list[Any]] = [
        [
            [one.hash, one.at - block]
            for one in images
            if one.at < block + BLOCK and one.at + one.tokens > block
        ]
        for block in range(0, len(ids), BLOCK)
    ]
    extras[0] += [salt] if salt else []
    event = {**stored(0, None, ids, None), "block_hashes": [1, 2, 3, 4], "block_size": BLOCK}
    index = KvBlockIndex(BLOCK, None)
    for translated in translator.translate(
        0, packed({**event, "extra_keys": [extra or None for extra in extras]})
    ):
        index.apply(translated)
    assert index.keys() == list(block_keys(with_images(pack_ids(ids), images), BLOCK, salt=salt))


def test_hashes_may_be_bytes(translator: ZmqKvTranslator) -> None:
    event = {**stored(0, None, [1, 2, 3, 4], None), "block_hashes": [b"\x0a\xff"]}
    (translated,) = translator.translate(0, packed(event))
    assert translated == BlocksStored(None, [("0aff", [1, 2, 3, 4])])
    assert translator.translate(1, packed(removed(b"\x0a\xff"))) == [BlocksRemoved(["0aff"])]


def test_a_gap_clears_what_is_known(translator: ZmqKvTranslator) -> None:
    assert translator.translate(5, packed()) == []
    assert translator.translate(6, packed()) == []
    assert translator.translate(9, packed(removed(1))) == [CacheCleared(), BlocksRemoved([1])]
    assert translator.translate(10, packed({"type": "AllBlocksCleared"})) == [CacheCleared()]
    assert translator.translate(11, packed({"type": "BlockMoved"})) == [CacheCleared()]
    newer = {**stored(1, None, [1, 2, 3, 4], None), "lookahead_token_ids": [5]}
    assert len(translator.translate(12, packed(newer))) == 1


def test_events_of_other_layers_and_media_are_told_apart(translator: ZmqKvTranslator) -> None:
    """A window and states, offloaded blocks, and the beginning of a block."""
    whole = stored(1, None, [1, 2, 3, 4], None)
    window = {**whole, "group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
    window["kv_cache_spec_sliding_window"] = 6
    states = {**whole, "block_hashes": [], "group_idx": 2, "kv_cache_spec_kind": "mamba"}
    offloaded = {**whole, "medium": "CPU"}
    part = stored(1, None, [1, 2], None)
    groups = [LayerGroup(1, 4, needed=2), LayerGroup(2, 4, needed=1)]
    assert translator.translate(0, packed(window, whole, offloaded, part, states)) == [
        *(GroupStored(group, []) for group in groups),
        GroupStored(groups[0], [1]),
        BlocksStored(None, [(1, [1, 2, 3, 4])]),
        BlocksOffloaded([1]),
        GroupStored(groups[1], []),
    ]
    gone = packed(removed(1, group_idx=1), {**removed(1), "medium": "CPU"}, removed(1, group_idx=0))
    assert translator.translate(1, gone) == [
        *(GroupRemoved(1, [1]), OffloadedRemoved([1]), BlocksRemoved([1]))
    ]


def test_offloaded_blocks_have_the_keys_of_the_cache(translator: ZmqKvTranslator) -> None:
    """As vLLM's `OffloadingConnector` reports them: without tokens, parent and kind."""
    whole = stored(1, None, [1, 2, 3, 4], "tenant")
    placeholder = {**whole, "token_ids": [], "block_size": 0, "medium": "CPU", "extra_keys": None}
    placeholder["kv_cache_spec_kind"] = None
    index = KvBlockIndex(BLOCK, None)

    def read(number: int, *events: dict[str, Any]) -> tuple[list[int], list[int]]:
        for event in translator.translate(number, packed(*events)):
            index.apply(event)
        return index.keys(), index.offloaded.keys()

    held = list(block_keys(pack_ids([1, 2, 3, 4]), BLOCK, salt="tenant"))
    assert read(0, whole, {**placeholder, "block_hashes": [99]}) == (held, [])
    assert read(1, removed(1), placeholder) == ([], held)
    assert read(2, whole) == (held, held)
    assert read(3, {**removed(1), "medium": "CPU"}) == (held, [])
    assert read(4, placeholder, {"type": "AllBlocksCleared"}) == ([], [])
