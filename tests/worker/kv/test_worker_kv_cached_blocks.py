"""The blocks of a prefix cache without events, and the keys of an ended turn."""

from hypothesis import given
from hypothesis import strategies as st

from schemas.token_ids import pack_ids
from services.tokenization.block_keys import block_keys
from services.worker.kv.cached_blocks import CachedBlocks, extend_keys


def test_of_chains_that_branch_the_least_recently_used_ends_go_first() -> None:
    blocks = CachedBlocks(6)
    for chain in ([1, 2, 3], [1, 2, 4], [1, 5], [6]):
        blocks.use(chain)
    assert blocks.keys() == [3, 4, 2, 5, 1, 6]
    came, went = blocks.use([1, 2, 7, 8])
    assert ([*came], [*went]) == ([7, 8], [3, 4])
    assert blocks.keys() == [5, 6, 8, 7, 2, 1]
    assert blocks.match([1, 2, 3]) == 2
    _, went = blocks.use([1, 2, 7, 9, 10])
    assert [*went] == [5, 6]
    assert blocks.keys() == [8, 10, 9, 7, 2, 1]
    blocks.use([1, 11])
    assert blocks.match([1, 2, 7, 9]) == 4


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 40), st.integers(1, 5))
def test_keys_can_be_made_in_pieces(ids: list[int], cut: int, block: int) -> None:
    known = list(block_keys(pack_ids(ids[:cut]), block, salt="s"))
    whole = list(block_keys(pack_ids(ids), block, salt="s"))
    assert list(extend_keys(known, pack_ids(ids[len(known) * block :]), block, "s")) == whole
