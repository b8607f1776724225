"""Reads and changes the JSON schemas of tools, for their arguments in a grammar."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from services.families.tool_types import types_of
from services.runtime.long_work import levels

INPUT: Final = "input"
CUSTOM_SCHEMA: Final = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
}
"""The arguments of a freeform tool."""
LITERAL: Final = frozenset({"enum", "const"})
_TYPES: Final = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_BEYOND_TYPES: Final = LITERAL | {"pattern", "format", "minLength", "maxLength"}
"""Keywords that restrict a string. For a string without quotes only its own `enum` or `const` can
be enforced."""
_MAX_DEPTH: Final = 64
_DEFINITIONS: Final = ("$defs", "definitions")
_FORMATS: Final = frozenset(
    {
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
        "unknown",
    }
)
"""The formats that llguidance supports. JSON Schema lets other formats restrict nothing."""


def stated_types(schema: Mapping[str, Any]) -> list[str]:
    """The types that a schema states; [] for any."""
    stated = schema.get("type")
    if stated is None and "properties" in schema:
        stated = "object"
    names: Iterable[Any] = stated if isinstance(stated, list) else [stated]
    return [name for name in names if isinstance(name, str) and name in _TYPES]


def literals_of(schema: Mapping[str, Any]) -> list[Any]:
    """The values that a schema lists; [] if it lists none."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else []


def is_deep(schema: Mapping[str, Any]) -> bool:
    """Whether a schema is nested too deeply for the recursion of what follows it. Raises LongWork
    as `levels`."""
    return any(depth > _MAX_DEPTH for depth, _ in enumerate(levels(schema)))


def definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the definitions to which a schema's references may lead."""
    return {name: schema[name] for name in _DEFINITIONS if name in schema}


def known_formats(schema: Any) -> Any:
    """Removes formats that restrict nothing from a schema."""
    return _changed(schema, _without_unknown_format)


def guarded(schema: Any, pattern: str | None) -> Any:
    """Adds a pattern to the schema's strings, because the family's parser would end the value at a
    marker in one. None: no string of the schema can hold a marker."""
    if pattern is None:
        return schema

    def add_pattern(part: dict[str, Any]) -> dict[str, Any]:
        if _may_be_any_string(part):
            part["pattern"] = pattern
        if "properties" in part:  # names of other members could hold a marker, too
            part.setdefault("additionalProperties", False)
        return part

    return _changed(schema, add_pattern)


def text_limits(schema: Mapping[str, Any], root: Mapping[str, Any]) -> set[str]:
    """Returns the keywords that may restrict a string in a schema, or in what its references may
    lead to."""
    limits = limits_of(schema)
    if "$ref" in json.dumps(schema):
        for name in _DEFINITIONS:
            limits |= limits_of(root.get(name))
    return limits


def limits_of(value: Any) -> set[str]:
    """Returns the keywords that may restrict a string, anywhere in a schema."""
    limits: set[str] = set()
    if isinstance(value, Mapping):
        limits |= value.keys() & _BEYOND_TYPES
        value = list(value.values())
    if isinstance(value, list):
        limits = limits.union(*map(limits_of, value))
    return limits


def _changed(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Applies `change` to all parts of a schema, the inner ones first. Literal values stay."""
    if isinstance(schema, list):
        return [_changed(value, change) for value in schema]
    if not isinstance(schema, Mapping):
        return schema
    part: dict[str, Any] = {}
    for key, value in schema.items():
        part[key] = value if key in LITERAL else _changed(value, change)
    return change(part)


def _without_unknown_format(part: dict[str, Any]) -> dict[str, Any]:
    format = part.get("format")
    if isinstance(format, str) and format not in _FORMATS:
        del part["format"]
    return part


def _may_be_any_string(part: Mapping[str, Any]) -> bool:
    if not isinstance(part.get("type"), str | list) or "string" not in types_of(part, {}):
        return False
    return not part.keys() & {*LITERAL, "pattern"}
