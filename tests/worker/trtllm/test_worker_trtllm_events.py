"""KV events and statistics in TensorRT-LLM's form."""

from typing import Any

from services.worker.engines.trtllm.events import TrtllmKvTranslator
from services.worker.kv.events import BlocksRemoved, BlocksStored, CacheCleared


def block(block_hash: int, tokens: list[Any], **more: Any) -> dict[str, Any]:
    unique = [{"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in tokens]
    return {
        "type": "stored_block",
        "block_hash": block_hash,
        "tokens": unique,
        "cache_level": 0,
        "priority": 35,
        **more,
    }


def event(number: int, data: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"event_id": number, "window_size": 4096, "data": data, **more}


def stored(number: int, parent: int | None, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return event(number, {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}, **more)


def removed(number: int, *hashes: int, **more: Any) -> dict[str, Any]:
    return event(number, {"type": "removed", "block_hashes": list(hashes)}, **more)


def test_whole_blocks_become_chains() -> None:
    kv = TrtllmKvTranslator(2)
    created = event(0, {"type": "created", "num_blocks_per_cache_level": [10, 0]})
    both = stored(1, None, block(11, [1, 2]), block(12, [3, 4]))
    chain = BlocksStored(None, [(11, [1, 2]), (12, [3, 4])])
    assert kv.translate([created, both, removed(2, 12)]) == [chain, BlocksRemoved([12])]
    salted = stored(3, 11, block(13, [5, 6], cache_salt="s"))
    assert kv.translate([salted]) == [BlocksStored(11, [(13, [5, 6])], "s")]


def test_blocks_that_are_not_full_are_left_out_and_so_is_their_end() -> None:
    kv = TrtllmKvTranslator(2)
    half = stored(0, None, block(11, [1, 2]), block(12, [3]))
    told = kv.translate([half, removed(1, 12), removed(2, 11, 12)])
    assert told == [BlocksStored(None, [(11, [1, 2])]), BlocksRemoved([11, 12])]
    assert kv.translate([stored(3, None, block(20, ["a1b2", 2]))]) == []
    assert kv.translate([stored(4, 20, block(21, [3, 4]))]) == []
    full = BlocksStored(None, [(12, [3, 4])])
    assert kv.translate([stored(5, None, block(12, [3, 4]))]) == [full]
    grown = [stored(6, None, block(30, [1])), stored(7, None, block(30, [1, 2]))]
    _, child = kv.translate([*grown, stored(8, 30, block(31, [3, 4]))])
    assert child == BlocksStored(30, [(31, [3, 4])]), "its parent is full"


def test_a_hole_in_the_numbers_voids_what_is_known_of_that_rank() -> None:
    kv = TrtllmKvTranslator(2)
    kv.translate([removed(0, 1), removed(0, 1, attention_dp_rank=1)])
    told = kv.translate([removed(5, 11), removed(1, 12, attention_dp_rank=1)])
    assert told == [CacheCleared(0), BlocksRemoved([11]), BlocksRemoved([12], 1)]
    assert kv.translate([removed(6, 13)]) == [BlocksRemoved([13])]


def test_only_the_window_of_the_whole_prompt_and_a_block_in_all_layer_groups_count() -> None:
    """Newer releases announce a block once for each group of layers, also of one window."""
    kv = TrtllmKvTranslator(1)
    whole = stored(0, None, block(1, [1]), window_size=4096)
    windowed = stored(1, None, block(1, [1]), window_size=128)
    assert kv.translate([whole, windowed]) == [BlocksStored(None, [(1, [1])])]
    kv = TrtllmKvTranslator(1)
    groups = [stored(number, None, block(1, [1]), layer_group_id=number) for number in (0, 1)]
    assert kv.translate(groups) == [BlocksStored(None, [(1, [1])])] * 2
    assert kv.translate([removed(2, 1, layer_group_id=1)]) == [BlocksRemoved([1])]
