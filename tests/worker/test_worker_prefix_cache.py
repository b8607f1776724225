"""Which blocks of a prompt are held."""

from hypothesis import given
from hypothesis import strategies as st

from services.worker.engines.prefix_cache import PrefixCache


def test_whole_blocks_from_the_start_only() -> None:
    cache = PrefixCache(4, 400)
    cache.insert(cache.keys([1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert cache.match(cache.keys([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])) == 2
    assert cache.match(cache.keys([1, 2, 3, 4, 0, 6, 7, 8])) == 1
    assert cache.match(cache.keys([0, 2, 3, 4, 5, 6, 7, 8])) == 0
    assert cache.match(cache.keys([5, 6, 7, 8])) == 0
    assert cache.match(cache.keys([1, 2, 3])) == 0


def test_salts_are_apart() -> None:
    cache = PrefixCache(2, 100)
    cache.insert(cache.keys([1, 2, 3, 4], "a"))
    assert cache.match(cache.keys([1, 2, 3, 4], "b")) == 0
    assert cache.match(cache.keys([1, 2, 3, 4])) == 0
    assert cache.match(cache.keys([1, 2, 3, 4], "a")) == 2


def test_the_oldest_goes_first_and_of_it_the_end() -> None:
    cache = PrefixCache(1, 6)
    old, new = cache.keys([1, 2, 3, 4]), cache.keys([7, 8, 9])
    cache.insert(old)
    cache.insert(new)
    assert len(cache) == 6
    assert cache.match(new) == 3
    assert cache.match(old) == 3


def test_what_is_used_stays() -> None:
    cache = PrefixCache(1, 4)
    first, second = cache.keys([1, 2]), cache.keys([3, 4])
    cache.insert(first)
    cache.insert(second)
    assert cache.match(first) == 2
    cache.insert(cache.keys([5, 6]))
    assert (cache.match(first), cache.match(second)) == (2, 0)


def test_more_than_fits_keeps_its_beginning() -> None:
    cache = PrefixCache(1, 3)
    keys = cache.keys([1, 2, 3, 4, 5])
    cache.insert(keys)
    assert (len(cache), cache.match(keys)) == (3, 3)


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 40), st.integers(1, 5))
def test_keys_can_be_made_in_pieces(ids: list[int], cut: int, block: int) -> None:
    cache = PrefixCache(block, 1000)
    known = cache.keys(ids[:cut], "s")
    assert cache.extend(known, ids[len(known) * block :], "s") == cache.keys(ids, "s")
