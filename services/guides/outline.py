"""Reduces the schemas of tools to what grammars can enforce: members, types, literals and limits of
numbers and lengths. A library accepts each outline, and what fits a schema fits its outline."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from schemas.conversation import ToolSpec
from services.families.tool_types import json_type, resolved, types_of
from services.guides.tool_schemas import LITERAL, definitions, literals_of, stated_types

_UNIONS: Final = ("anyOf", "oneOf")
_MAX_OUTLINES: Final = 1 << 16
"""Characters of the outlines in a grammar. llguidance refuses grammars of some ten times that, and
takes seconds for them."""
_MAX_LENGTH: Final = 1024
"""Limits of lengths beyond it are left out: a grammar would have to count."""
_MAX_NUMBER: Final = 2**53


def outlined_tools(tools: Iterable[ToolSpec], *, quoted: bool) -> list[ToolSpec]:
    """The tools as `outlined_tool` returns them, as far as a grammar has room; the others stay."""
    room = _MAX_OUTLINES
    outlined: list[ToolSpec] = []
    for tool in tools:
        outline = outlined_tool(tool, quoted=quoted)
        if outline is not tool:
            room -= len(json.dumps(outline.schema))
        outlined.append(outline if room >= 0 else tool)
    return outlined


def outlined_tool(tool: ToolSpec, *, quoted: bool) -> ToolSpec:
    """A tool that is guided by the outline of its schema, as a strict tool is by its schema. Strict
    and freeform tools stay. `quoted`: the family's calls have strings in quotes."""
    if tool.strict or tool.kind == "custom":
        return tool
    if not quoted and not tool.schema.get("properties"):
        return tool  # the tags of a strict tool would be those of its properties
    root = resolved(tool.schema, tool.schema)
    outline = _Outline({**definitions(tool.schema), **root}, quoted=quoted)
    return replace(tool, schema=outline.arguments(), strict=True)


class _Outline:
    """The outline of one tool's schema."""

    def __init__(self, root: Mapping[str, Any], *, quoted: bool) -> None:
        self._root = root
        self._quoted = quoted

    def arguments(self) -> dict[str, Any]:
        """The outline of the whole schema: one of objects."""
        named = {
            name: {key: self._any(part) for key, part in parts.items()}
            for name, parts in definitions(self._root).items()
            if isinstance(parts, Mapping)
        }
        members = self._object(self._root)
        if not self._quoted:
            properties = members.get("properties", {})
            members["properties"] = {
                key: self._bare(value, value) for key, value in properties.items()
            }
        return {"type": "object", **members, **named}

    def _bare(self, part: Mapping[str, Any], value: Any) -> Mapping[str, Any]:
        """The outline of an argument that may be text without quotes: its types, and texts."""
        types = types_of(part, self._root)
        if "string" not in types:
            return part
        texts = part.get("enum")
        if texts and all(isinstance(text, str) for text in texts):
            return {"type": "string", "enum": texts}
        return {"type": sorted(types)}

    def _any(self, schema: Any) -> dict[str, Any]:
        """The outline of a schema at any place."""
        if not isinstance(schema, Mapping):
            return {}
        if "$ref" in schema:
            return self._reference(schema)
        for union in (*_UNIONS, "allOf"):
            options = schema.get(union)
            if isinstance(options, list) and not schema.keys() & {"type", "properties", *LITERAL}:
                return self._union(options, is_choice=union in _UNIONS)
        literals = literals_of(schema)
        types = stated_types(schema)
        if types:
            literals = [value for value in literals if _is_of(value, types)]
        if literals:
            return {"enum": literals}

        outline: dict[str, Any] = {}
        if types:
            outline["type"] = types[0] if len(types) == 1 else types
        if "object" in types:
            outline |= self._object(schema)
        if "array" in types:
            outline |= self._array(schema)
        if "string" in types and self._quoted:
            outline |= _lengths(schema, "minLength", "maxLength")
        if {"integer", "number"} & set(types):
            outline |= _bounds(schema)
        return outline

    def _reference(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A reference to a definition; {} for others, and for one that leads to itself."""
        reference = schema["$ref"]
        if not isinstance(reference, str) or not resolved(schema, self._root):
            return {}
        first, _, name = reference.removeprefix("#/").partition("/")
        is_definition = first in definitions(self._root) and "/" not in name
        return {"$ref": reference} if is_definition else {}

    def _union(self, options: Sequence[Any], *, is_choice: bool) -> dict[str, Any]:
        outlines = [self._any(option) for option in options]
        if len(outlines) == 1:
            return outlines[0]
        if is_choice and all(outlines):
            return {"anyOf": outlines}
        return {}

    def _object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The members of an object."""
        outline: dict[str, Any] = {}
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            outline["properties"] = {key: self._any(value) for key, value in properties.items()}
            required = schema.get("required")
            if isinstance(required, list):
                outline["required"] = [key for key in required if key in outline["properties"]]
        others = schema.get("additionalProperties")
        if "patternProperties" not in schema:
            if others is False:
                outline["additionalProperties"] = False
            elif isinstance(others, Mapping):
                outline["additionalProperties"] = self._any(others)
        return outline

    def _array(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        outline = _lengths(schema, "minItems", "maxItems")
        if "prefixItems" not in schema and isinstance(schema.get("items"), Mapping):
            outline["items"] = self._any(schema["items"])
        return outline


def _is_of(value: Any, types: Sequence[str]) -> bool:
    kind = json_type(value)
    return kind in types or (kind == "integer" and "number" in types)


def _lengths(schema: Mapping[str, Any], least: str, most: str) -> dict[str, Any]:
    """The limits of a length."""
    limits = {
        name: schema[name]
        for name in (least, most)
        if type(schema.get(name)) is int and 0 <= schema[name] <= _MAX_LENGTH
    }
    return limits if limits.get(least, 0) <= limits.get(most, _MAX_LENGTH) else {}


def _bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The limits of a number; {} where they may leave none."""
    names = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    bounds = {
        name: schema[name]
        for name in names
        if type(schema.get(name)) is int and abs(schema[name]) < _MAX_NUMBER
    }
    lower = [bounds[name] for name in names[:2] if name in bounds]
    upper = [bounds[name] for name in names[2:] if name in bounds]
    if lower and upper:
        room = min(upper) - max(lower)
        exclusive = sum(name.startswith("exclusive") for name in bounds)
        if room < exclusive:
            return {}
    return bounds
