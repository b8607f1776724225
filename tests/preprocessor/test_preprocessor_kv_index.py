"""The index of the workers' KV blocks stands for their sets."""

from hypothesis import given
from hypothesis import strategies as st

from services.preprocessor.routing.kv_index import KvIndex

workers = st.sampled_from(["a", "b", "c"])
some_keys = st.lists(st.integers(0, 12), max_size=8)


STEPS = st.tuples(st.sampled_from(["add", "remove", "forget"]), workers, some_keys, some_keys)


@given(st.lists(STEPS, max_size=30))
def test_index_stands_for_the_sets_of_the_workers_blocks(
    steps: list[tuple[str, str, list[int], list[int]]],
) -> None:
    index = KvIndex()
    held: dict[str, set[int]] = {"a": set(), "b": set(), "c": set()}
    for step, worker, keys, prompt in steps:
        if step == "add":
            index.add(worker, keys)
            held[worker] |= set(keys)
        elif step == "remove":
            index.remove(worker, keys)
            held[worker] -= set(keys)
        else:
            index.forget(worker)
            held[worker].clear()
        overlaps = index.overlaps(prompt)
        for one, blocks in held.items():
            depth = next((at for at, key in enumerate(prompt) if key not in blocks), len(prompt))
            assert overlaps.get(one, 0) == depth
        assert len(index) == len(set().union(*held.values())), "nothing is kept for nobody"


@given(
    st.dictionaries(workers, st.tuples(st.booleans(), st.sets(st.integers(0, 12))), min_size=1),
    st.lists(st.integers(0, 12), max_size=8),
)
def test_ends_of_a_worker_count_alone_and_other_blocks_in_a_row(
    held: dict[str, tuple[bool, set[int]]], prompt: list[int]
) -> None:
    index = KvIndex()
    for worker, (has_ends, held_keys) in held.items():
        index.set_ends(worker, has_ends)
        index.add(worker, held_keys)
    overlaps = index.overlaps(prompt)
    for worker, (has_ends, held_keys) in held.items():
        run = next((at for at, key in enumerate(prompt) if key not in held_keys), len(prompt))
        last = max((at for at, key in enumerate(prompt, 1) if key in held_keys), default=0)
        assert overlaps.get(worker, 0) == (last if has_ends else run)


@given(
    st.sets(st.integers(0, 9)),
    st.sets(st.integers(0, 9)),
    st.sets(st.integers(0, 9)),
    st.lists(st.integers(0, 9), max_size=8, unique=True),
)
def test_loadable_blocks_follow_the_cached_ones(
    cached: set[int], offloaded: set[int], gone: set[int], prompt: list[int]
) -> None:
    index = KvIndex()
    index.add("a", cached)
    index.add_offloaded("a", [*offloaded])
    index.remove_offloaded("a", gone)
    overlaps = index.overlaps(prompt)
    either = cached | (offloaded - gone)
    run = next((at for at, key in enumerate(prompt) if key not in either), len(prompt))
    loadable = index.loadable(prompt, overlaps).get("a", 0)
    assert overlaps.get("a", 0) + loadable == (run if offloaded else overlaps.get("a", 0))
