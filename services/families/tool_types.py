"""Reduces a request's tools to what a parser needs: their names, and the types of their arguments.

Agents send 20 to 30 tools with every request, tens of kilobytes of descriptions for the model. A parse context holds
about a tenth of that.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from schemas.conversation import ToolSpec
from services.families.coercion import CONTAINERS

_INNER: Final = frozenset({"items", "additionalProperties"})
_NAMED: Final = frozenset({"properties", "$defs", "definitions"})
_CHOICES: Final = frozenset({"anyOf", "oneOf", "allOf"})
_KEPT: Final = frozenset({"type", "const", "enum", "$ref"}) | _NAMED | _CHOICES
_MAX_DEPTH: Final = 64


def bare(tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    """The tools with names and schemas only, and the schemas with types only. Every parser gives the same events with
    them as with the tools themselves."""
    return [
        ToolSpec(tool.name, schema=_bare(tool.schema) if _keeps_references(tool.schema) else tool.schema)
        for tool in tools
    ]


def _bare(schema: Any, depth: int = 0) -> Any:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _INNER:
            kept[key] = _bare(value, depth + 1)
        elif key in _NAMED and isinstance(value, Mapping):
            kept[key] = {name: _bare(inner, depth + 1) for name, inner in value.items()}
        elif key in _CHOICES and isinstance(value, list):
            kept[key] = [_bare(branch, depth + 1) for branch in value]
        elif key in _KEPT:
            kept[key] = value
    # A schema without types is not the same as no schema.
    return kept or ({"type": sorted(CONTAINERS)} if schema else {})


def _keeps_references(schema: Any, depth: int = 0) -> bool:
    """Whether every reference leads to a place that `_bare` keeps."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(schema, list):
        return all(_keeps_references(value, depth + 1) for value in schema)
    if not isinstance(schema, Mapping):
        return True
    reference = schema.get("$ref")
    if isinstance(reference, str):
        path = reference.split("/")
        if path[0] == "#" and not (len(path) == 3 and path[1] in _NAMED):
            return False
    return all(_keeps_references(value, depth + 1) for value in schema.values())
