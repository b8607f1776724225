"""Gives values that are bare text the types of the tool's schema, without guessing.

Order, where a schema admits several types: null, integer, number, boolean, object, array, string. A value that fits
none of them stays a string, as does every value of a parameter that is a string in the schema, or not in it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from schemas.conversation import ToolSpec
from services.families.grammar.scanner import quoted

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,4096}\Z")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z")
_LOOSE_NUMBER: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?((?:[eE][+-]?[0-9]+)?)\Z")
_BOOLEANS: Final = {"true": "true", "false": "false", "1": "true", "0": "false"}
_MAX_REFERENCES: Final = 16
_MAX_DEPTH: Final = 4

Literals: TypeAlias = Callable[[str], str | None]
"""Reads a whole object or array and returns it as JSON, or None."""

STRING: Final = frozenset({"string"})
NULLABLE_STRING: Final = frozenset({"string", "null"})
CONTAINERS: Final = frozenset({"object", "array", "string"})
"""The types of a schema that has none: an object or array is one, anything else is text."""


class Tools:
    """The tools of a request, by name."""

    __slots__ = ("_by_name",)

    def __init__(self, tools: Iterable[ToolSpec] = ()) -> None:
        self._by_name = {tool.name: tool for tool in tools}

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def named(self, name: str, namespaces: tuple[str, ...] = (), *, unknown: bool = True) -> str:
        """`name` as the tool is registered: without the namespace that the format puts before it (`functions.f`), or
        its repetition (`f.f`). `unknown`: so is the name of a tool that is not registered."""
        if name in self._by_name:
            return name
        bare = next((name[len(n) :] for n in namespaces if name.startswith(n) and name != n), name)
        if bare in self._by_name:
            return bare
        head, _, tail = bare.rpartition(".")
        if tail in self._by_name and (head == tail or namespaces):
            return tail
        return bare if unknown else name

    def parameters(self, tool: str) -> Mapping[str, Any]:
        """The schemas of a tool's parameters; empty for an unknown tool."""
        spec = self._by_name.get(tool)
        properties = resolved(spec.schema, spec.schema).get("properties") if spec else None
        return properties if isinstance(properties, Mapping) else {}

    def schema(self, tool: str) -> Mapping[str, Any]:
        """The schema of a tool's arguments; empty for an unknown tool."""
        spec = self._by_name.get(tool)
        return spec.schema if spec else {}

    def types(self, tool: str, key: str) -> frozenset[str]:
        """The types that parameter `key` of `tool` may have; string if it is unknown."""
        parameters = self.parameters(tool)
        return types_of(parameters[key], self.schema(tool)) if key in parameters else STRING


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """`schema` with a reference into `root` followed; empty if it is no schema."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        schema = root
        for step in reference[2:].split("/"):
            schema = schema.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(schema, Mapping) else None
    return {}


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The JSON types that `schema` admits, from `type`, `enum`, `const`, `anyOf`, `oneOf`, `allOf` and `$ref`."""
    schema = resolved(schema, root)
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(t for t in declared if isinstance(t, str)) or STRING
    if "const" in schema:
        return frozenset({json_type(schema["const"])})
    if isinstance(schema.get("enum"), list):
        return frozenset(map(json_type, schema["enum"])) or STRING
    for union in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(union)
        if isinstance(branches, list) and branches and depth < _MAX_DEPTH:
            return frozenset().union(*(types_of(branch, root, depth + 1) for branch in branches))
    if "properties" in schema or "additionalProperties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else CONTAINERS


def json_type(value: Any) -> str:
    """The JSON type of a value."""
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def coerced(text: str, types: frozenset[str], literal: Literals) -> str:
    """`text` as JSON of the first of `types` that it fits, else as a JSON string."""
    bare = text.strip()
    if "null" in types and (bare == "null" or (bare == "None" and "string" not in types)):
        return "null"
    if ("integer" in types or "number" in types) and (number := number_text(bare, "number" in types)):
        return number
    if "boolean" in types and (boolean := _BOOLEANS.get(bare.lower())):
        return boolean
    if ("object" in types and bare[:1] == "{") or ("array" in types and bare[:1] == "["):
        container = literal(bare)
        if container is not None:
            return container
    return quoted(text)


def number_text(text: str, fraction: bool) -> str | None:
    """A number in JSON, unchanged if it is JSON already; with `fraction` also one that is not whole."""
    if _INTEGER.match(text):
        digits = text.lstrip("+-").lstrip("0") or "0"
        return ("-" if text[0] == "-" else "") + digits
    if _NUMBER.match(text):
        return text if fraction or _whole(text) else None
    loose = _LOOSE_NUMBER.match(text)
    if not fraction or loose is None or not (loose[2] or loose[3]):
        return None
    return ("-" if loose[1] == "-" else "") + (loose[2].lstrip("0") or "0") + f".{loose[3] or '0'}{loose[4]}"


def _whole(text: str) -> bool:
    mantissa, _, exponent = text.lower().partition("e")
    return not exponent and not mantissa.partition(".")[2].strip("0")
