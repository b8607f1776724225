"""The blocks of a prefix cache against the plain way to keep them: a list in order of use."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from schemas.frames import pack_ids
from services.tokenization.block_keys import block_keys
from services.worker.kv.cached_blocks import CachedBlocks, extend_keys


class Plain:
    """Every block of a chain is moved to the end, the first last."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: OrderedDict[int, None] = OrderedDict()

    def match(self, keys: list[int]) -> int:
        return next((at for at, key in enumerate(keys) if key not in self.blocks), len(keys))

    def use(self, keys: list[int]) -> None:
        for key in reversed(keys[: self.capacity]):
            self.blocks[key] = None
            self.blocks.move_to_end(key)
        while len(self.blocks) > self.capacity:
            self.blocks.popitem(last=False)


def chain(path: list[int]) -> list[int]:
    """Keys that stand for all steps up to theirs."""
    key, keys = 1, []
    for step in path:
        key = key * 3 + step
        keys.append(key)
    return keys


_paths = st.lists(st.integers(0, 2), max_size=9)


@given(st.lists(st.tuples(_paths, st.booleans()), max_size=30), st.integers(1, 14))
def test_held_blocks_are_those_of_a_plain_list(
    uses: list[tuple[list[int], bool]], capacity: int
) -> None:
    blocks, plain = CachedBlocks(capacity), Plain(capacity)
    for path, known_only in uses:
        keys = chain(path)
        assert blocks.match(keys) == plain.match(keys)
        if known_only:
            keys = keys[: plain.match(keys)]
        before = set(plain.blocks)
        came, went = blocks.use(keys)
        plain.use(keys)
        assert (before | set(came)) - set(went) == set(plain.blocks)
        assert not set(came) & before
        assert blocks.keys() == list(plain.blocks), "the least recently used first"


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 40), st.integers(1, 5))
def test_keys_can_be_made_in_pieces(ids: list[int], cut: int, block: int) -> None:
    known = list(block_keys(pack_ids(ids[:cut]), block, salt="s"))
    whole = list(block_keys(pack_ids(ids), block, salt="s"))
    assert list(extend_keys(known, pack_ids(ids[len(known) * block :]), block, "s")) == whole
