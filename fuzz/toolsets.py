"""The tools that requests offer while the parsers are fuzzed: those of the vectors, none, and
unusual ones."""

from functools import cache
from typing import Any, Final

from schemas.conversation import ToolSpec
from tests.kit.parser_cases import tools, vectors

_STRING: Final = {"type": "string"}
_AWKWARD: Final[dict[str, Any]] = {
    "no_schema": {},
    "not_a_schema": {"properties": ["path"], "type": 7},
    "read.read": {"properties": {"read": _STRING, "key": {"type": []}}},
    "mcp__vault-7.read.v2": {"properties": {"key": _STRING}},
    "unions": {
        "properties": {
            "maybe": {"type": ["string", "null"]},
            "many": {"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "array"}]},
            "empty": {"anyOf": []},
            "listed": {"enum": [1, "one", None, True, [1], {"a": 1}]},
            "wrong": "string",
        }
    },
    "references": {
        "$defs": {
            "loop": {"$ref": "#/$defs/loop"},
            "tree": {"properties": {"kids": {"items": {"$ref": "#/$defs/tree"}}}},
        },
        "properties": {
            "loop": {"$ref": "#/$defs/loop"},
            "tree": {"$ref": "#/$defs/tree"},
            "gone": {"$ref": "#/nowhere/at~1all"},
            "arguments": {"type": "object", "properties": {"a": {"type": "object"}}},
        },
    },
}


@cache
def of_the_vectors() -> tuple[ToolSpec, ...]:
    """Every tool that a vector offers, once."""
    found: dict[str, ToolSpec] = {}
    for vector in vectors():
        for tool in tools(vector):
            found.setdefault(tool.name, tool)
    return tuple(found.values())


def toolset(number: int) -> tuple[ToolSpec, ...]:
    """The tools for a number in a fuzzed input."""
    known = of_the_vectors()
    awkward = tuple(ToolSpec(name, schema=schema) for name, schema in _AWKWARD.items())
    return ((), known, known, known, awkward, known + awkward)[number % 6]
