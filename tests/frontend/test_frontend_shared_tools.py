"""Tests the raw input of freeform tools, for every splitting and spelling of the model's JSON."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.frontend.apis.shared.tools import FreeformInput, freeform_input


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(places)]


def read(parts: list[str]) -> str:
    reader = FreeformInput()
    return "".join([*(reader.feed(part) for part in parts), reader.end()])


@given(
    st.text(st.characters(exclude_categories=["Cs"])), st.booleans(), st.lists(st.integers(0, 999))
)
def test_input_is_the_same_for_every_splitting(
    said: str, ascii_only: bool, cuts: list[int]
) -> None:
    arguments = json.dumps({"input": said}, ensure_ascii=ascii_only)
    assert freeform_input(arguments) == said
    assert read(pieces(arguments, cuts)) == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"input": "a\\n\\u00e9\\ud83d\\ude00"}', "a\né😀"),
        ('{"input": "half \\ud83d pair \\ude00"}', "half \ufffd pair \ufffd"),
        ('{"why": 1, "patch": "x", "more": [1]}', "x"),
        ('{"a": "x", "b": "y"}', '{"a": "x", "b": "y"}'),
        ("", ""),
        ('"x\\n"', "x\n"),
        ("[1]", "[1]"),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"input": "cut \\u00', "cut "),
    ],
)
def test_unusual_arguments_are_read(arguments: str, said: str) -> None:
    assert freeform_input(arguments) == read([*arguments]) == said


def test_input_is_returned_as_soon_as_possible() -> None:
    reader = FreeformInput()
    said = [reader.feed(part) for part in ('{"inp', 'ut": "*** B', "egin\\", "n+x", '"', "}")]
    assert said == ["", "*** B", "egin", "\n+x", "", ""]
