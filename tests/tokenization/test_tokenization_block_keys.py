"""Keys of KV blocks."""

from array import array
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.frames import pack_ids
from services.tokenization.block_keys import _STRETCH, KeyMemo, PromptKeys, block_keys, pack, unpack

ids = st.lists(st.integers(0, 200_000), max_size=70)


def keys(tokens: list[int], size: int = 4, **more: object) -> list[int]:
    return list(block_keys(pack_ids(tokens), size, **more))  # type: ignore[arg-type]


def test_keys_are_the_same_in_every_process() -> None:
    assert keys([1, 2, 3, 4, 5, 6, 7, 8, 9]) == [8052976908588476977, 16362517228796925090]


@given(ids, ids, st.integers(1, 9))
def test_as_many_keys_are_equal_as_whole_blocks(
    one: list[int], other: list[int], size: int
) -> None:
    common = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    equal = sum(a == b for a, b in zip(keys(one, size), keys(other, size), strict=False))
    assert equal == common // size


@given(ids, ids, st.integers(1, 9))
def test_continued_keys_equal_keys_from_the_start(
    one: list[int], other: list[int], size: int
) -> None:
    whole = keys(one + other, size)
    count = len(one) // size
    parent = whole[count - 1] if count else None
    assert keys((one + other)[count * size :], size, parent=parent) == whole[count:]


def test_salt_separates_prompts() -> None:
    plain, salted = keys([1, 2, 3, 4]), keys([1, 2, 3, 4], salt="a")
    assert plain != salted != keys([1, 2, 3, 4], salt="b")
    assert plain == keys([1, 2, 3, 4], salt="")


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_packed_keys_round_trip(given_keys: list[int]) -> None:
    assert unpack(pack(given_keys)) == given_keys


_stretch = _STRETCH * 2
_prompts = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 5 * _stretch),
        st.integers(0, 3),
        st.sampled_from([None, "a", "b"]),
    ),
    max_size=12,
)


@given(_prompts)
def test_memo_changes_no_key(prompts: list[tuple[int, int, int, str | None]]) -> None:
    """Prompts with common beginnings of any length, under several salts, with room for few of
    them."""
    memo = KeyMemo(2, max_stretches=5)
    for head, cut, tail, salt in prompts:
        packed = pack_ids([head] * cut + [tail] * (_stretch + 3))
        assert list(memo.keys(packed, salt=salt)) == list(block_keys(packed, 2, salt=salt))


@given(
    st.integers(0, 5 * _stretch + 3), st.lists(st.slices(330) | st.integers(-330, 330), max_size=6)
)
def test_lazy_keys_equal_computed_ones(tokens: int, asked: list[slice | int]) -> None:
    packed = pack_ids(range(tokens))
    whole, made = list(block_keys(packed, 2)), PromptKeys(KeyMemo(2), packed)
    assert len(made) == len(whole)
    for place in asked:
        if isinstance(place, slice):
            assert list(made[place]) == whole[place]
        elif -len(whole) <= place < len(whole):
            assert made[place] == whole[place]
        else:
            with pytest.raises(IndexError):
                made[place]
    assert list(made) == whole


def test_only_requested_keys_are_made() -> None:
    class Counting(KeyMemo):
        made = 0

        def stretches(self, packed: bytes, *, salt: str | None = None) -> "Iterator[array[int]]":
            for stretch in super().stretches(packed, salt=salt):
                self.made += 1
                yield stretch

    memo = Counting(2)
    made = PromptKeys(memo, pack_ids(range(4 * _stretch)))
    for asked, stretches in ((slice(1), 1), (slice(_STRETCH), 1), (slice(-1, None), 4)):
        assert made[asked]
        assert memo.made == stretches
