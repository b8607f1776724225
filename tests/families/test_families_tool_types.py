"""The tools of a request by name, and the types of their arguments."""

import time
from typing import Any

from schemas.conversation import ToolSpec
from services.families.tool_types import CONTAINERS, STRING, Tools, member, resolved, types_of
from tests.kit.every import for_rows

STRING_TYPE = {"type": "string"}
ROOT = {
    "$defs": {
        "Level": {"enum": ["low", "high"]},
        "Loop": {"$ref": "#/$defs/Loop"},
        "Deep": {"anyOf": [{"$ref": "#/$defs/Deep"}] * 6},
    }
}


@for_rows(
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1, None, True]}, {"string", "integer", "null", "boolean"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"$ref": "#/$defs/Level"}, {"string"}),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, {"string"}),
        ({"allOf": [{"type": ["integer", "null"]}, {"type": "integer"}]}, {"integer"}),
        ({"type": "integer", "nullable": True}, {"integer", "null"}),
        ({"description": "anything"}, set(CONTAINERS)),
        ({"$ref": "#/$defs/Loop"}, set(CONTAINERS)),
        ({"$ref": "elsewhere.json"}, set(CONTAINERS)),
        (True, set(CONTAINERS)),
    ]
)
def test_types_of_a_schema_are_found(schema: Any, types: set[str]) -> None:
    assert types_of(schema, ROOT) == types


def test_a_schema_that_contains_itself_ends() -> None:
    assert types_of({"$ref": "#/$defs/Deep"}, ROOT)
    assert resolved({"$ref": "#/$defs/Loop"}, ROOT) == {}


def test_tools_have_the_types_of_their_parameters() -> None:
    properties = {"n": {"$ref": "#/$defs/N"}, "s": {"type": "string"}, "any": {}}
    schema = {"$defs": {"N": {"type": "integer"}}, "properties": properties}
    more = {**schema, "additionalProperties": {"type": "integer"}}
    tools = Tools([ToolSpec("f", schema=schema), ToolSpec("g"), ToolSpec("more", schema=more)])
    assert tools.types("f", "n") == tools.types("more", "other") == {"integer"}
    assert tools.types("more", "any") == CONTAINERS
    for name, key in (("f", "other"), ("g", "n"), ("unknown", "n")):
        assert tools.types(name, key) == STRING, name
    assert list(tools.parameters("f")) == ["n", "s", "any"]
    assert tools.parameters("g") == tools.parameters("unknown") == {}
    assert "f" in tools
    assert "x" not in tools
    assert not Tools()


@for_rows(
    [
        (
            {"properties": {"a": STRING_TYPE}, "additionalProperties": {"type": "null"}},
            "a",
            STRING_TYPE,
        ),
        ({"properties": {"a": {}}, "additionalProperties": STRING_TYPE}, "b", STRING_TYPE),
        ({"anyOf": [{"properties": {"a": STRING_TYPE}}]}, "a", STRING_TYPE),
        ({"oneOf": [{"type": "null"}, {"allOf": [{"items": STRING_TYPE}]}]}, "item", STRING_TYPE),
        ({"anyOf": [{"$ref": "#/$defs/Deep"}]}, "a", None),
    ]
)
def test_schema_of_a_member_is_found(schema: Any, key: str, found: Any) -> None:
    assert member(schema, key, ROOT) == found


@for_rows(
    [
        ("ping", (), "ping"),
        ("functions.ping", ("functions.",), "ping"),
        ("ping.ping", (), "ping"),
        ("x.ping", ("functions.",), "ping"),
        ("mcp.read", ("functions.",), "mcp.read"),
    ]
)
def test_names_are_mapped_to_registered_ones(
    written: str, namespaces: tuple[str, ...], name: str
) -> None:
    tools = Tools([ToolSpec("ping"), ToolSpec("mcp.read")])
    assert tools.registered_name(written, namespaces) == name


def test_unions_that_refer_to_each_other_take_linear_time() -> None:
    branches = [{"$ref": f"#/$defs/u{i}"} for i in range(100)]
    root = {"$defs": {f"u{i}": {"anyOf": branches, "nullable": i == 7} for i in range(100)}}
    begun = time.thread_time()
    assert types_of({"$ref": "#/$defs/u0"}, root) == CONTAINERS | {"null"}
    assert member({"$ref": "#/$defs/u0"}, "key", root) is None
    assert time.thread_time() - begun < 5
