"""Data that spells many control tokens does not hold the event loop: its marking stops there, and
is done in a thread."""

from collections.abc import Callable

import pytest

from services.runtime.long_work import LongWork, on_loop
from services.tokenization.data_marks import LOOP_CHARS, LOOP_MARKS, DataMarks
from tests.kit.every import for_each

END = "</think>"
MARKS = DataMarks([END, "<|im_start|>", "[INST]"], literals=["<|im_start|>"])
APART = DataMarks([END, "<|im_start|>"], handled=[END])
"""Of a template that takes texts apart at the token."""
TOOL = {"properties": {"path": {"description": f"a {END} b"}}}


@for_each(
    [
        lambda: MARKS.data.mark(f"a{END}b"),
        lambda: MARKS.data.mark_json(TOOL),
        lambda: APART.data.mark(END + "x" * LOOP_CHARS),
        lambda: MARKS.pieces(MARKS.data.mark(f"a{END}" * (LOOP_MARKS + 1))),
    ]
)
def test_marking_stops_when_its_time_on_the_loop_is_over(mark: Callable[[], object]) -> None:
    mark()
    with pytest.raises(LongWork), on_loop(-1.0):
        mark()
