"""How far two sequences agree."""

import os
from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.preprocessor.common_prefix import common_prefix


@given(st.text("ab", max_size=30), st.text("ab", max_size=30), st.text("ab\u6f22", max_size=30))
def test_of_texts(front: str, one: str, other: str) -> None:
    pair: Any = (front + one, front + other)
    assert common_prefix(*pair) == os.path.commonprefix(pair)  # noqa: RUF071 - of characters


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_of_ids(front: list[int], one: list[int], other: list[int]) -> None:
    pair = (array("I", front + one), array("I", front + other))
    assert list(common_prefix(*pair)) == os.path.commonprefix([list(ids) for ids in pair])  # noqa: RUF071
