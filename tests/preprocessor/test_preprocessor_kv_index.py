"""The index of KV blocks."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.preprocessor.routing.kv_index import KvIndex

workers = st.sampled_from(["a", "b", "c"])
some_keys = st.lists(st.integers(0, 12), max_size=8)


def test_oldest_blocks_of_a_worker_are_dropped_over_the_limit() -> None:
    index = KvIndex(max_keys=2)
    index.add("a", [1, 2, 3])
    index.add("b", [1])
    assert index.overlaps([1]) == {"b": 1}
    assert index.overlaps([2, 3]) == {"a": 2}
    assert len(index) == 3


class Machine(RuleBasedStateMachine):
    """The index and the sets that it stands for."""

    def __init__(self) -> None:
        super().__init__()
        self.index = KvIndex()
        self.held: dict[str, set[int]] = {"a": set(), "b": set(), "c": set()}

    @rule(worker=workers, keys=some_keys)
    def stored(self, worker: str, keys: list[int]) -> None:
        self.index.add(worker, keys)
        self.held[worker] |= set(keys)

    @rule(worker=workers, keys=some_keys)
    def removed(self, worker: str, keys: list[int]) -> None:
        self.index.remove(worker, keys)
        self.held[worker] -= set(keys)

    @rule(worker=workers)
    def forget(self, worker: str) -> None:
        self.index.forget(worker)
        self.held[worker].clear()

    @rule(prompt=some_keys)
    def overlap(self, prompt: list[int]) -> None:
        expected = {}
        for worker, held in self.held.items():
            depth = next((i for i, key in enumerate(prompt) if key not in held), len(prompt))
            if depth:
                expected[worker] = depth
        found = {worker: depth for worker, depth in self.index.overlaps(prompt).items() if depth}
        assert found == expected

    @invariant()
    def nothing_is_kept_for_nobody(self) -> None:
        assert len(self.index) == len(set().union(*self.held.values()))


TestMachine = Machine.TestCase
