"""The tools that requests offer while the parsers are fuzzed: those of the vectors, none, and
unusual ones."""

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from schemas.conversation import ToolSpec

VECTORS: Final = Path(__file__).parents[1] / "tests" / "vectors"

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
            "nested": {
                "anyOf": [{"anyOf": [{"anyOf": [{"anyOf": [{"anyOf": [{"type": "number"}]}]}]}]}]
            },
            "empty": {"anyOf": []},
            "fixed": {"const": 7},
            "listed": {"enum": [1, "one", None, True, [1], {"a": 1}]},
            "untyped": {},
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
            "item": {"type": "array", "items": {"type": "integer"}},
            "arguments": {"type": "object", "properties": {"a": {"type": "object"}}},
        },
    },
    "everything": {
        "properties": {
            "s": _STRING,
            "i": {"type": "integer"},
            "n": {"type": "number"},
            "b": {"type": "boolean"},
            "o": {"type": "object"},
            "a": {"type": "array", "items": {"type": "object"}},
            "z": {"type": "null"},
        }
    },
}


@cache
def of_the_vectors() -> tuple[ToolSpec, ...]:
    """Every tool that a vector offers, once."""
    found: dict[str, ToolSpec] = {}
    for file in sorted(VECTORS.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            for tool in json.loads(line)["tools"]:
                found.setdefault(
                    tool["name"], ToolSpec(tool["name"], tool["description"], tool["parameters"])
                )
    return tuple(found.values())


@cache
def awkward() -> tuple[ToolSpec, ...]:
    """Tools with unusual names and schemas, or with invalid schemas."""
    return tuple(ToolSpec(name, schema=schema) for name, schema in _AWKWARD.items())


def toolset(number: int) -> tuple[ToolSpec, ...]:
    """The tools for a number in a fuzzed input."""
    vectors = of_the_vectors()
    return ((), vectors, vectors, vectors, awkward(), vectors + awkward())[number % 6]
