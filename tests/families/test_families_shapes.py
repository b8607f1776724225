"""Shapes and sets of markers: a result never changes with more input."""

from re import Match

import pytest

from services.families.grammar.shapes import END, MORE, MarkerMatch, Markers, Shape
from tests.kit.every import for_each
from tests.kit.examples import chances


def test_a_literal_matches_once_it_is_whole() -> None:
    shape = Shape("<call>")
    assert [shape.at("<call>"[:n], 0, False) for n in range(6)] == [MORE] * 6
    found = shape.at("<call> x", 0, False)
    assert isinstance(found, Match)
    assert found.end() == 6
    assert shape.at("<cold>", 0, False) is None


@for_each(["<call>" + " " * 65 + "<f>", "<call> x", "<call>\n<g>"])
def test_a_hole_is_bounded_and_exact(text: str) -> None:
    assert Shape("<call>{ws}<f>").at(text, 0, False) is None


def test_then_looks_ahead_without_consuming() -> None:
    shape = Shape("<call>", then=("{", "[["))
    assert shape.at("<call>", 0, False) is MORE
    assert shape.at("<call> \n[", 0, False) is MORE
    found = shape.at("<call> [[1", 0, False)
    assert isinstance(found, Match)
    assert found.end() == 6
    assert shape.at("<call> x", 0, False) is None


SHAPES = [
    Shape("<a>{ws}<b={name}>", then=("<c", "</b>", END)),
    Shape("<a{suffix}>{junk}<b>{id}<c>"),
    Shape("<a k={q}{key}{q} t={q}{bool}{q}>"),
    Shape("{ws}to={name}", then=("<|", "json")),
    Shape("{bare}{ws}="),
]


PIECES = [*"<>ab=/c k\"':-|\n", "<a", "<b=", "</b>", "<c>", "true", "false", "json", "to="]


def is_final(shape: Shape, text: str) -> None:
    """None stays None and a match stays the same match, whatever comes after."""
    settled = None
    for n in range(len(text) + 1):
        answer = shape.at(text[:n], 0, False)
        seen = answer if answer is None or answer is MORE else answer.span()
        if settled is not None:
            assert seen == settled[0], text[:n]
        elif answer is not MORE:
            settled = (seen,)


@for_each(SHAPES, name=repr)
def test_result_of_a_shape_is_final(shape: Shape) -> None:
    for chance in chances(repr(shape), 300):
        is_final(shape, "".join(chance.choices(PIECES, k=chance.randint(0, 20))))


def test_cut_distinguishes_a_marker_from_a_possible_one() -> None:
    shape = Shape("<call>{ws}<f={name}>")
    assert shape.cut("<cal", 0) == (False, False)
    assert shape.cut("<call> ", 0) == (True, False)
    assert shape.cut("<call> <f=a", 0) == (True, True)
    assert shape.cut("<cold", 0) is None
    assert Shape("<|o|>{ws}a<|s|>b", marker="<|o|>{ws}a<|s|>").cut("<|o|>a", 0) == (False, False)


@pytest.fixture
def markers() -> Markers[str]:
    return Markers(
        [
            (Shape("<call>", then=("{",)), "call"),
            (Shape("</think>"), "answer"),
            (Shape("<fn", line_start=True), "fn"),
        ]
    )


def test_find_sees_whole_heads_and_the_last_incomplete_one(markers: Markers[str]) -> None:
    assert markers.find("a <b> <call> x", 0, False) == 6
    assert markers.find("a <b> </thi", 0, False) == 6
    assert markers.find("a <b> </thi", 0, True) == -1
    assert markers.find("a </thx", 0, False) == -1
    assert markers.find("<" * 100, 0, False) == 99


def test_the_first_shape_wins() -> None:
    both = Markers([(Shape("<a>{ws}<b>"), "long"), (Shape("<a>"), "short")])
    assert both.at("<a>", 0, False) is MORE
    for text, meaning in (("<a>x", "short"), ("<a> <b>", "long")):
        found = both.at(text, 0, False)
        assert isinstance(found, MarkerMatch), text
        assert found.meaning == meaning


def test_the_trigger_misses_no_marker_and_no_trailing_blank(markers: Markers[str]) -> None:
    assert markers.trigger("plain text") is None
    assert markers.trigger("a < b")
    assert markers.trigger("ends in a break\n")
    assert markers.trigger(" starts with a blank") is None
    assert Markers([]).trigger("<call>") is None


def test_a_marker_needs_a_head() -> None:
    with pytest.raises(ValueError, match="literal"):
        Markers([(Shape("{name}("), None)])
