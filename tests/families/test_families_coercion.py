import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.conversation import ToolSpec
from services.families.coercion import CONTAINERS, STRING, Tools, coerced, number_text, resolved, types_of
from services.families.readers.values import literal

ROOT = {
    "$defs": {
        "Level": {"enum": ["low", "high"]},
        "Loop": {"$ref": "#/$defs/Loop"},
        "Deep": {"anyOf": [{"$ref": "#/$defs/Deep"}] * 6},
    }
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1, None, True]}, {"string", "integer", "null", "boolean"}),
        ({"const": 1.5}, {"number"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"oneOf": [{"type": "string"}, {"anyOf": [{"type": "array"}]}]}, {"string", "array"}),
        ({"$ref": "#/$defs/Level"}, {"string"}),
        ({"allOf": [{"$ref": "#/$defs/Level"}]}, {"string"}),
        ({"properties": {}}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"description": "anything"}, set(CONTAINERS)),
        ({"$ref": "#/$defs/Loop"}, set(CONTAINERS)),
        ({"$ref": "elsewhere.json"}, set(CONTAINERS)),
        ({"type": []}, {"string"}),
        ({"type": 3}, set(CONTAINERS)),
        (True, set(CONTAINERS)),
        (None, set(CONTAINERS)),
    ],
)
def test_types_of_a_schema(schema: Any, types: set[str]) -> None:
    assert types_of(schema, ROOT) == types


def test_a_schema_that_contains_itself_ends() -> None:
    assert types_of({"$ref": "#/$defs/Deep"}, ROOT)
    assert resolved({"$ref": "#/$defs/Loop"}, ROOT) == {}


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("null", {"string", "null"}, None),
        ("None", {"integer", "null"}, None),
        ("None", {"string", "null"}, "None"),
        ("null", {"integer"}, "null"),
        ("12", {"integer"}, 12),
        ("12", {"string"}, "12"),
        ("9007199254740993", {"integer"}, 9007199254740993),
        ("-0012", {"integer"}, -12),
        ("12.0", {"integer"}, 12.0),
        ("12.5", {"integer"}, "12.5"),
        ("1e-3", {"number"}, 0.001),
        (".5", {"number"}, 0.5),
        ("1.2.3", {"number"}, "1.2.3"),
        ("NaN", {"number"}, "NaN"),
        ("", {"number"}, ""),
        ("True", {"boolean"}, True),
        ("FALSE", {"boolean"}, False),
        ("1", {"boolean"}, True),
        ("1", {"boolean", "integer"}, 1),
        ("yes", {"boolean"}, "yes"),
        ('{"a": 1}', {"object"}, {"a": 1}),
        ("{'a': True}", {"object"}, {"a": True}),
        ("[1, 2]", {"array"}, [1, 2]),
        ("[1, 2", {"array"}, "[1, 2"),
        ("[1]", {"object"}, "[1]"),
        ('{"a": 1}', {"string"}, '{"a": 1}'),
        (" 4 ", {"integer"}, 4),
        (" x ", {"integer"}, " x "),
        ("4", set(CONTAINERS), "4"),
        ("[4]", set(CONTAINERS), [4]),
    ],
)
def test_the_first_type_that_fits(text: str, types: set[str], expected: object) -> None:
    value = json.loads(coerced(text, frozenset(types), literal))
    assert value == expected
    assert isinstance(value, bool) == isinstance(expected, bool)


@given(st.text(max_size=40))
def test_a_string_is_never_retyped(text: str) -> None:
    assert json.loads(coerced(text, STRING, literal)) == text


@given(
    st.text(max_size=20),
    st.sets(st.sampled_from(["null", "integer", "number", "boolean", "object", "array", "string"])),
)
def test_the_result_is_json(text: str, types: set[str]) -> None:
    json.loads(coerced(text, frozenset(types), literal))


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_a_number_keeps_its_spelling(number: float) -> None:
    spelled = json.dumps(number)
    assert number_text(spelled, True) == spelled


def test_tools_know_their_parameters() -> None:
    schema = {"$defs": {"N": {"type": "integer"}}, "properties": {"n": {"$ref": "#/$defs/N"}, "s": {"type": "string"}}}
    tools = Tools([ToolSpec("f", schema=schema), ToolSpec("g")])
    assert tools.types("f", "n") == {"integer"}
    assert tools.types("f", "other") == tools.types("g", "n") == tools.types("unknown", "n") == STRING
    assert list(tools.parameters("f")) == ["n", "s"]
    assert tools.parameters("g") == tools.parameters("unknown") == {}
    assert "f" in tools
    assert "x" not in tools
    assert not Tools()


@pytest.mark.parametrize(
    ("written", "namespaces", "name"),
    [
        ("ping", (), "ping"),
        ("functions.ping", ("functions.",), "ping"),
        ("functions.other", ("functions.",), "other"),
        ("functions.", ("functions.",), "functions."),
        ("functions.ping", (), "functions.ping"),
        ("ping.ping", (), "ping"),
        ("x.ping", (), "x.ping"),
        ("x.ping", ("functions.",), "ping"),
        ("mcp.read", ("functions.",), "mcp.read"),
        ("other.other", (), "other.other"),
    ],
)
def test_names_are_mapped_to_registered_ones(written: str, namespaces: tuple[str, ...], name: str) -> None:
    assert Tools([ToolSpec("ping"), ToolSpec("mcp.read")]).named(written, namespaces) == name
