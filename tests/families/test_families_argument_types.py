"""Arguments are checked for required members and types, and for nothing else."""

from typing import Any

from services.families.argument_types import fits
from tests.kit.every import for_rows

STRING = {"type": "string"}
LIST = {"type": "array", "items": {"type": "object", "required": ["a"]}}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": STRING,
                "inner": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
            },
        }
    },
}
LOOP = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"type": "integer", "allOf": [{"$ref": "#"}]}]}


@for_rows(
    [
        ({}, {}, True),
        ({"a": 1}, {"required": ["a"]}, True),
        ({"b": 1}, {"required": ["a"]}, False),
        ({"b": 1}, {"required": "a"}, True),
        ({"b": 1}, {"required": [["a"]]}, True),
        ({"a": 1}, {"properties": {"a": STRING}}, False),
        ({"a": 1}, {"properties": {"a": {"type": ["string", "integer"]}}}, True),
        ({"a": 1}, {"properties": {"a": {"type": "number"}}}, True),
        ({"a": 1.5}, {"properties": {"a": {"type": "integer"}}}, False),
        ({"a": 2.0}, {"properties": {"a": {"type": "integer"}}}, True),
        ({"a": True}, {"properties": {"a": {"type": "integer"}}}, False),
        ({"a": None}, {"properties": {"a": STRING}}, False),
        ({"a": None}, {"properties": {"a": {**STRING, "nullable": True}}}, True),
        ({"a": "x"}, {"properties": {"a": {"enum": ["y"]}}}, True),
        ({"a": 1}, {"properties": {"a": {"type": "str"}}}, True),
        ({"a": 1}, {"properties": {"a": {"type": []}}}, True),
        ({"a": 1}, {"properties": {"a": {"type": {}}}}, True),
        ({"a": 1}, {"properties": {"a": True}}, True),
        ({"a": 1}, {"properties": {"a": {"type": ["array", "object", "string"]}}}, True),
        ({"b": 1}, {"additionalProperties": False}, True),
        ([{"a": 1}], LIST, True),
        ([{"a": 1}, {}], LIST, False),
        ({"name": "x", "inner": {"name": "y", "inner": None}}, TREE, True),
        ({"name": "x", "inner": {"inner": None}}, TREE, False),
        ({"a": 1}, {"allOf": [{"required": ["a"]}, {"required": ["b"]}]}, False),
        ({"a": 1}, {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, True),
        ({"a": 1}, {"anyOf": {"required": ["b"]}}, True),
    ]
)
def test_value_fits_a_schema(value: Any, schema: dict[str, Any], expected: bool) -> None:
    assert fits(value, schema) is expected


def test_schema_that_refers_to_itself_ends() -> None:
    value: Any = []
    for _ in range(200):
        value = [value, value]
    assert fits(value, LOOP)
    assert fits(value, {"type": "array", "items": {"$ref": "#"}})
