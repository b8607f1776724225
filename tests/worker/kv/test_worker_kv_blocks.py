"""What a worker's index of its KV cache holds, by the engine's events and without them."""

from msgspec.structs import replace

from schemas.events import PromptImage
from schemas.token_ids import pack_ids, unpack_ids
from services.tokenization.block_keys import (
    KeyMemo,
    PromptKeys,
    block_keys,
    image_word,
    with_images,
)
from services.worker.kv.blocks import KvBlockIndex
from services.worker.kv.events import BlocksRemoved, BlocksStored, CacheCleared, KvEvent
from tests.kit.every import for_rows

SIZE = 4


def keys(*tokens: int) -> list[int]:
    return list(block_keys(pack_ids(tokens), SIZE))


def book(*events: KvEvent, capacity: int | None = None) -> KvBlockIndex:
    made = KvBlockIndex(SIZE, capacity)
    for event in events:
        made.apply(event)
    return made


def stored(
    parent: int | str | None, *blocks: tuple[int | str, list[int]], rank: int = 0
) -> BlocksStored:
    return BlocksStored(parent, list(blocks), rank=rank)


A, B, C = [1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]


BOTH_RANKS = (stored(None, ("a", A), rank=0), stored(None, ("a", A), ("b", B), rank=1))


@for_rows(
    [
        ([stored(None, ("a", A), ("b", B)), stored("b", ("c", C))], keys(*A, *B, *C)),
        ([stored("an unknown parent", ("b", B))], []),
        ([stored(None, ("a", A), ("b", B)), BlocksRemoved(["b", "never heard of"])], keys(*A)),
        ([stored(None, ("a", A)), stored(None, ("a", A)), BlocksRemoved(["a"])], []),
        ([*BOTH_RANKS, BlocksRemoved(["b", "a"], 1)], keys(*A)),  # one rank still has it
        ([*BOTH_RANKS, BlocksRemoved(["a"], 0), BlocksRemoved(["b", "a"], 1)], []),
        ([*BOTH_RANKS, CacheCleared(1)], keys(*A)),
    ]
)
def test_blocks_are_held_as_the_events_say(events: list[KvEvent], held: list[int]) -> None:
    assert book(*events).keys() == held


def test_a_cleared_cache_is_empty_and_publishes_it() -> None:
    reported = book(stored(None, ("a", A)))
    reported.take_changes()
    reported.apply(CacheCleared())
    reported.apply(stored(None, ("c", C)))
    assert reported.take_changes() == (True, dict.fromkeys(keys(*C), True))


def test_without_events_the_least_recently_used_go_and_of_a_prompt_the_end() -> None:
    reported = book(capacity=3 * SIZE)
    first, second = keys(*A, *B), keys(*C, *A)
    reported.record_use(first)
    reported.record_use(second)
    assert set(reported.keys()) == {first[0], *second}
    reported.record_use(first[:1])
    reported.record_use(keys(*B))
    assert set(reported.keys()) == {first[0], second[0], *keys(*B)}


def test_a_long_prompt_is_held_up_to_the_reported_blocks() -> None:
    for blocks, more in ((0, 1), (2, 70), (300, 200)):
        reported = book(stored(None, *((number, [number] * SIZE) for number in range(blocks))))
        prompt = pack_ids([number for number in range(blocks + more) for _ in range(SIZE)])
        keys_of_prompt = PromptKeys(KeyMemo(SIZE), prompt)
        assert reported.count_cached(keys_of_prompt, blocks + more) == blocks
        assert reported.count_cached(keys_of_prompt, 1) == min(blocks, 1)


def test_a_follower_of_the_changes_has_the_whole_index() -> None:
    reported, known = book(capacity=2 * SIZE), set[int]()
    for number, run in enumerate(([*A, *B], C, [*A, *C], B, A, [*B, *A])):
        reported.record_use(keys(*run))
        if number % 2:
            for key, held in reported.take_changes()[1].items():
                (known.add if held else known.discard)(key)
    assert known == set(reported.keys())


@for_rows(
    [
        ([(3, 2)], 0),
        ([(5, 9), (14, 1)], 1),
        ([(0, 4), (8, 4), (13, 5)], 1),
    ]
)
def test_prompts_with_another_image_share_the_blocks_before_it_and_no_other(
    places: list[tuple[int, int]], changed: int
) -> None:
    """Wherever keys are made: of whole prompts, on demand, and of an engine's events, which have
    the words of images in their ids."""
    packed = pack_ids([7] * 23)  # all are placeholders, of which some are images
    images = [PromptImage(f"{n:040x}", at, tokens) for n, (at, tokens) in enumerate(places)]
    other = list(images)
    other[changed] = replace(images[changed], hash="f" * 40)
    memo, found = KeyMemo(SIZE), list[list[int]]()
    for variant in (images, list(images), other):
        keyed = with_images(packed, variant)
        made = list(block_keys(keyed, SIZE))
        words = unpack_ids(keyed)
        assert {at: word for at, word in enumerate(words) if word != 7} == {
            one.at: unpack_ids(image_word(one.hash))[0] for one in variant
        }
        blocks = [words[start : start + SIZE] for start in range(0, len(made) * SIZE, SIZE)]
        assert book(stored(None, *enumerate(blocks))).keys() == made
        assert list(memo.keys(keyed)) == list(PromptKeys(memo, keyed)) == made
        found.append(made)
    same = images[changed].at // SIZE
    assert found[1] == found[0]
    assert found[2][:same] == found[0][:same]
    assert not set(found[2][same:]) & set(found[0])


def test_removals_are_known_since_a_moment() -> None:
    reported = book(stored(None, ("a", A), ("b", B)), stored(None, ("c", C)))
    first, second = keys(*A, *B)
    before = reported.removals
    reported.apply(BlocksRemoved(["b"]))
    reported.apply(stored("a", ("b", B)))
    assert reported.was_removed(second, before)
    assert not reported.was_removed(first, before)
    assert not reported.was_removed(second, reported.removals)
    before = reported.removals
    reported.apply(CacheCleared())
    assert reported.was_removed(first, before)
