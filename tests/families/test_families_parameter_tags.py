"""The tags of calls with one tag for each argument: what a tag means, and when an end is stray."""

from services.families.grammar.shapes import MarkerMatch, Markers
from services.families.readers.parameter_tags import ParameterTags
from services.families.readers.value_tags import Tag
from tests.kit.every import for_rows

TAGS = ParameterTags(
    parameter_tags=("<p={key}>",),
    parameter_closers=("</p>",),
    call_closers=("</f>",),
    next_markers=("</call>", "<f="),
    call_tags=("<f={name}>",),
    json=("{",),
)
FOUND = [
    # before a value
    (TAGS.before, "<p=a>", Tag.VALUE_START),
    (TAGS.before, "<p=<", Tag.UNREADABLE_START),
    (TAGS.before, "{", Tag.JSON_START),
    (TAGS.between, "{ </f>", Tag.CALL_END),
    (TAGS.between, "<f=g>", Tag.AFTER_CALL),
    # in a value
    (TAGS.inside, "</p> <p=b>", Tag.VALUE_END),
    (TAGS.inside, "</p></f>", Tag.VALUE_END),
    (TAGS.inside, "</p>", Tag.VALUE_END),
    (TAGS.inside, "</p> and more", Tag.STRAY_VALUE_END),
    (TAGS.inside, "<f=g><p=a>", Tag.CALL_START),
    (TAGS.inside, '<p name="a">', Tag.FOREIGN_START),
    (TAGS.inside, "</f></call>", Tag.FINAL_CALL_END),
    (TAGS.inside, "</f> and more", Tag.CALL_END),
]


@for_rows(FOUND)
def test_a_tag_means_what_follows_it(markers: Markers[Tag], text: str, meaning: Tag) -> None:
    marker = markers.at(text, markers.find(text, 0, True), True)
    assert isinstance(marker, MarkerMatch)
    assert marker.meaning is meaning


@for_rows(
    [
        ("a </p> <p=", True),
        ("a </p></f> </call>", True),
        ("a </p></f> and: more", False),
        ("</f>", False),
    ],
)
def test_an_end_in_text_is_stray(text: str, is_stray: bool) -> None:
    assert (TAGS.find_stray_end(text) is not None) == is_stray


def test_a_value_is_plain_up_to_a_tag() -> None:
    framed = ParameterTags(
        parameter_tags=("<p={key}>",),
        parameter_closers=("</p>",),
        call_closers=("</f>",),
        frame=True,
    )
    assert TAGS.stretch.escape
    assert TAGS.stretch.trigger("a\n") is None
    assert framed.stretch.trigger("a\n") is not None
    assert framed.stretch.trigger("a < b") is not None
