"""Bare text as a value of a type that its schema admits."""

import json

from hypothesis import given
from hypothesis import strategies as st

from services.families.readers.bare_text import coerced
from services.families.readers.numbers import number_text
from services.families.tool_types import CONTAINERS, STRING
from tests.kit.every import for_rows


@for_rows(
    [
        ("null", {"string", "null"}, None),
        ("None", {"integer", "null"}, None),
        ("null", {"integer"}, "null"),
        ("12", {"integer"}, 12),
        ("9007199254740993", {"integer"}, 9007199254740993),
        ("12.0", {"integer"}, 12),
        ("12.5", {"integer"}, "12.5"),
        ("1e5", {"integer"}, 100000),
        ("1e999999", {"integer"}, "1e999999"),
        ("1e-3", {"number"}, 0.001),
        ("True", {"boolean"}, True),
        ("1", {"boolean"}, True),
        ('{"a": 1}', {"object"}, {"a": 1}),
        ("{'a': True}", {"object"}, {"a": True}),
        ("[1, 2]", {"array"}, [1, 2]),
        ('{"a": 1}', {"string"}, '{"a": 1}'),
        (" 4 ", {"integer"}, 4),
        ("4", set(CONTAINERS), "4"),
        ("[4]", set(CONTAINERS), [4]),
    ]
)
def test_first_type_that_fits_is_taken(text: str, types: set[str], expected: object) -> None:
    value = json.loads(coerced(text, frozenset(types)))
    assert value == expected
    assert type(value) is type(expected)


@given(
    st.text(max_size=20),
    st.sets(st.sampled_from(["null", "integer", "number", "boolean", "object", "array", "string"])),
)
def test_the_result_is_json(text: str, types: set[str]) -> None:
    json.loads(coerced(text, frozenset(types)))
    assert json.loads(coerced(text, STRING)) == text


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_a_number_keeps_its_spelling(number: float) -> None:
    spelled = json.dumps(number)
    assert number_text(spelled, True) == spelled
