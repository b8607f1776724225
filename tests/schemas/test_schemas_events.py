"""Events make blocks."""

from schemas.events import blocks_of
from tests.kit.events import text


def test_blocks_have_their_start_text_and_end() -> None:
    first, last = text(0, ("a", "b")), text(1, "cut")[:-1]
    blocks = [(start.block, said, stop) for start, said, stop in blocks_of([*first, *last])]
    assert blocks == [(0, "ab", first[-1]), (1, "cut", None)]
