"""What a worker predicts of a cache with several groups of layers, against one that behaves as
vLLM's."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from schemas.token_ids import pack_ids
from services.tokenization.block_keys import block_keys
from services.worker.engines.zmq_events.translator import ZmqKvTranslator
from services.worker.kv.blocks import KvBlockIndex
from services.worker.kv.events import BlockHash, BlocksStored, LayerGroup
from services.worker.kv.grouped_blocks import GroupedBlocks
from tests.kit.every import for_rows
from tests.worker.fake_hybrid import FULL, STATES, WINDOW, FakeGroup, FakeHybridCache

SIZE = 4
ATTENTION = FakeGroup(FULL, SIZE)
STATE = FakeGroup(STATES, SIZE)
PROMPT = list(range(43))


class Follower:
    """A worker's index, fed by the events of a cache."""

    def __init__(self, cache: FakeHybridCache) -> None:
        self.cache = cache
        self.index = KvBlockIndex(SIZE, None)
        self._translator = ZmqKvTranslator(SIZE)
        self._batches = 0

    def read(self, *events: dict[str, Any]) -> None:
        """Applies a batch."""
        payload = msgspec.msgpack.encode([1.5, list(events), 0])
        for event in self._translator.translate(self._batches, payload):
            self.index.apply(event)
        self._batches += 1

    def run(self, ids: list[int], *kept: int) -> int:
        """Runs a prompt. Returns what the cache finds."""
        found = self.cache.find(ids)
        self.read(*self.cache.run(ids, set(kept)))
        return found

    def predict(self, ids: list[int]) -> int:
        """The tokens that the worker expects in the cache, as the publisher counts them."""
        keys = block_keys(pack_ids(ids), SIZE)
        return self.index.count_cached(keys, (len(ids) - 1) // SIZE) * SIZE

    def published(self, ids: list[int]) -> int:
        """The tokens that a preprocessor expects there: up to the last end that it has."""
        ends = set(self.index.keys())
        keys = block_keys(pack_ids(ids[:-1]), SIZE)
        return max((SIZE * n for n, key in enumerate(keys, 1) if key in ends), default=0)


@for_rows(
    [
        ([ATTENTION, STATE], 40),
        ([STATE, ATTENTION, STATE], 40),
        ([ATTENTION, FakeGroup(STATES, 2 * SIZE)], 40),
        ([ATTENTION, FakeGroup(STATES, 6 * SIZE)], 24),
        ([ATTENTION, FakeGroup(WINDOW, SIZE, 10)], 40),
        ([FakeGroup(WINDOW, SIZE, 300), ATTENTION], 40),
        ([ATTENTION, STATE, FakeGroup(WINDOW, 2 * SIZE, 3 * SIZE)], 40),
    ]
)
def test_prompt_is_reused_where_an_earlier_one_ended(groups: list[FakeGroup], end: int) -> None:
    follower = Follower(FakeHybridCache(*groups))
    assert follower.run(PROMPT) == follower.predict([]) == 0
    longer = [*PROMPT, *PROMPT]
    assert follower.predict(longer) == follower.published(longer) == end
    assert follower.run(longer) == end
    half = PROMPT[:30] + [9] * 20
    assert follower.predict(half) == follower.cache.find(half)


def test_junction_counts_from_the_third_prompt_on() -> None:
    """vLLM keeps a state where a second prompt departs from the first (`shared_prefix_boundary`)."""
    follower = Follower(FakeHybridCache(ATTENTION, STATE))
    siblings = [PROMPT[:24] + [number] * 10 for number in (100, 200, 300)]
    follower.run(siblings[0])
    assert follower.predict(siblings[1]) == 0
    assert follower.run(siblings[1], 24) == 0
    assert follower.predict(siblings[2]) == follower.run(siblings[2]) == 24


def test_first_blocks_after_a_new_group_was_found_are_no_promise() -> None:
    """A group that appears late: what is there is forgotten."""
    follower = Follower(FakeHybridCache(ATTENTION, STATE))
    attention, state = follower.cache.run(PROMPT, set())
    follower.read(attention)
    follower.read(state)
    assert follower.predict([*PROMPT, 1]) == 0
    follower.run([7] * 30)
    assert follower.predict([7] * 31) == 28


@for_rows(
    [
        ({"kv_cache_spec_kind": "chunked_local_attention"}, "chunked_local_attention"),
        ({"kv_cache_spec_kind": WINDOW}, WINDOW),  # without the size of the window
        ({"block_size": 2 * SIZE}, FULL),
    ]
)
def test_unknown_layers_end_the_prediction(change: dict[str, Any], kind: str) -> None:
    follower = Follower(FakeHybridCache(ATTENTION, ATTENTION))
    first, second = follower.cache.run(PROMPT, set())
    follower.read(first, {**second, **change})
    assert kind in follower.index.unpredictable
    follower.run([*PROMPT, *PROMPT])
    assert follower.predict([*PROMPT, 1]) == 0
    assert follower.index.keys() == []


def test_beginning_of_a_block_is_not_a_layer_of_its_own() -> None:
    """vLLM with `prefix_match_unit` below the block size (`cache_partial_block`)."""
    follower = Follower(FakeHybridCache(ATTENTION, STATE))
    events = follower.cache.run(PROMPT, set())
    part = {**events[0], "block_hashes": [5], "token_ids": [40, 41], "block_size": SIZE // 2}
    follower.read(part, *events)
    assert follower.predict([*PROMPT, 1]) == 40


def test_draft_model_costs_the_last_block() -> None:
    index = KvBlockIndex(SIZE, None, recomputed_blocks=1)
    follower = Follower(FakeHybridCache(ATTENTION))
    follower.index = index
    follower.run(PROMPT)
    assert follower.predict([*PROMPT, 1]) == 36


GROUPS = st.lists(
    st.one_of(
        st.builds(FakeGroup, st.just(STATES), st.sampled_from([SIZE, 2 * SIZE, 3 * SIZE])),
        st.builds(
            FakeGroup, st.just(WINDOW), st.sampled_from([SIZE, 2 * SIZE]), st.integers(2, 40)
        ),
        st.just(ATTENTION),
    ),
    min_size=1,
    max_size=3,
).filter(lambda groups: any(group.kind != FULL for group in groups))
PIECES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 14)), min_size=1, max_size=4)
STEPS = st.tuples(PIECES, st.sets(st.integers(0, 60)), st.lists(st.integers(0, 200), max_size=6))


@given(GROUPS, st.integers(0, 3), st.lists(STEPS, min_size=1, max_size=12))
def test_what_the_cache_finds_is_predicted(
    others: list[FakeGroup], place: int, steps: list[Any]
) -> None:
    """Whatever the groups, the prompts, the places of states, and the order of evictions. A
    preprocessor, which has ends and no blocks, expects no more either."""
    groups = [*others[:place], ATTENTION, *others[place:]]
    follower = Follower(FakeHybridCache(*groups))
    prompts = list[list[int]]()
    for pieces, kept, evictions in steps:
        prompts.append([token for token, count in pieces for _ in range(count)])
        ends = {end * follower.cache.alignment for end in kept}
        follower.run(prompts[-1], *ends)
        for at in evictions:
            if follower.cache.stored:
                follower.read(follower.cache.evict(at))
        for prompt in prompts:
            found = follower.cache.find(prompt)
            assert follower.predict(prompt) == follower.published(prompt) == found


@for_rows([(needed, step) for needed in (64, 256) for step in (1, -1, 7)])
def test_work_of_an_event_does_not_grow_with_the_window(needed: int, step: int) -> None:
    """The lines of code that run for each block that is stored, or is evicted in an event of its
    own, and for each end that is none any more."""
    blocks, group = GroupedBlocks(SIZE, 0), LayerGroup(1, SIZE, needed)
    blocks.store_in_group(group, [])
    hashes: list[BlockHash] = [*range(1, 1501)]
    prompt = BlocksStored(None, [(number, [number] * SIZE) for number in range(1, 1501)])
    with counted_lines() as stored:
        blocks.store(prompt)
        blocks.store_in_group(group, hashes)
    assert stored.total() < 150 * len(hashes)
    assert len(blocks.ends()) == len(hashes)
    first = hashes[: 4 * needed]
    with counted_lines() as evicted:
        for start in range(abs(step)):
            for hash_ in first[start::step] if step > 0 else first[::step]:
                blocks.remove_from_group(group.number, [hash_])
    assert evicted.total() < 150 * (len(first) + needed)
    assert len(blocks.ends()) == len(hashes) - len(first) - needed + 1


@contextmanager
def counted_lines() -> Iterator[Counter[str]]:
    """Counts the lines of `services` that run, by file."""
    lines = Counter[str]()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if "services" not in frame.f_code.co_filename:
            return None
        lines[frame.f_code.co_filename] += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)
