"""Reduces the schemas of tools to what grammars can enforce: members, types and literals. A library
accepts each outline, and what fits a schema fits its outline."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from schemas.conversation import ToolSpec
from services.families.tool_types import json_type, resolved, types_of
from services.guides.tool_schemas import (
    LITERAL,
    definitions,
    is_deep,
    literals_of,
    stated_types,
)

_CHOICES: Final = ("anyOf", "oneOf")
_UNIONS: Final = (*_CHOICES, "allOf")
_MAX_OUTLINES: Final = 1 << 15
"""Characters of the outlines in a grammar. For more of them llguidance takes a tenth of a second
and more, in which an engine may decode nothing."""


def outlined_tools(tools: Iterable[ToolSpec], *, quoted: bool) -> list[ToolSpec]:
    """The tools as `outlined_tool` returns them, as far as a grammar has room; the others stay."""
    room = _MAX_OUTLINES
    outlined: list[ToolSpec] = []
    for tool in tools:
        outline = outlined_tool(tool, quoted=quoted) if room > 0 else tool
        if outline is not tool:
            room -= len(json.dumps(outline.schema))
        outlined.append(outline if room >= 0 else tool)
    return outlined


def outlined_tool(tool: ToolSpec, *, quoted: bool) -> ToolSpec:
    """A tool that is guided by the outline of its schema, as a strict tool is by its schema. Strict
    and freeform tools stay. `quoted`: the family's calls have strings in quotes."""
    if tool.strict or tool.kind == "custom" or is_deep(tool.schema):
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
        self._names: dict[str, str] = {}
        """References to definitions → names of their outlines, because libraries refuse some."""
        self._open: list[tuple[str, Any]] = []
        """Names and schemas of definitions without an outline yet."""

    def arguments(self) -> dict[str, Any]:
        """The outline of the whole schema: one of objects."""
        members = self._object(self._root)
        if not self._quoted:
            properties = members.get("properties", {})
            members["properties"] = {
                key: self._bare(value, self._root["properties"][key])
                for key, value in properties.items()
            }
        outlines: dict[str, Any] = {}
        while self._open:
            name, part = self._open.pop()
            outlines[name] = self._any(part)
        if outlines:
            members["$defs"] = outlines
        return {"type": "object", **members}

    def _bare(self, outline: Mapping[str, Any], part: Any) -> Mapping[str, Any]:
        """The outline of an argument that may be text without quotes: its types, and texts."""
        types = types_of(part, self._root)
        if "string" not in types:
            return outline
        texts = outline.get("enum")
        if texts and all(isinstance(text, str) for text in texts):
            return {"type": "string", "enum": texts}
        return {"type": stated_types({"type": sorted(types)})}

    def _any(self, schema: Any) -> dict[str, Any]:
        """The outline of a schema at any place; {} admits any value. What fits the schema fits each
        of its keywords, so one is enough. The first of these decides: a reference, a union that has
        nothing of what follows beside it, literals, types."""
        if not isinstance(schema, Mapping):
            return {}
        if "$ref" in schema:
            return self._reference(schema)
        union = _union_of(schema)
        if union is not None:
            return self._union(schema[union], is_choice=union in _CHOICES)
        types = stated_types(schema)
        literals = literals_of(schema)
        if types:
            literals = [value for value in literals if _is_of(value, types)]
        if literals:
            return {"enum": literals}
        return self._typed(schema, types)

    def _typed(self, schema: Mapping[str, Any], types: list[str]) -> dict[str, Any]:
        """The outline of a schema with these types, with their members and items."""
        outline: dict[str, Any] = {}
        if types:
            outline["type"] = types[0] if len(types) == 1 else types
        if "object" in types:
            outline |= self._object(schema)
        if "array" in types and "prefixItems" not in schema and "items" in schema:
            outline["items"] = self._any(schema["items"])
        return outline

    def _reference(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A reference to a definition; {} for others, and for one that leads to itself."""
        reference = schema["$ref"]
        part = resolved(schema, self._root)
        if not part or not isinstance(reference, str):
            return {}
        first, _, name = reference.removeprefix("#/").partition("/")
        if first not in definitions(self._root) or "/" in name:
            return {}
        if reference not in self._names:
            self._names[reference] = f"d{len(self._names)}"
            self._open.append((self._names[reference], part))
        return {"$ref": f"#/$defs/{self._names[reference]}"}

    def _union(self, options: Sequence[Any], *, is_choice: bool) -> dict[str, Any]:
        outlines = [self._any(option) for option in options]
        if len(outlines) == 1:
            return outlines[0]
        if is_choice and outlines and all(outlines):
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
                outline["required"] = [key for key in properties if key in required]
        others = schema.get("additionalProperties")
        if "patternProperties" not in schema:
            if others is False:
                outline["additionalProperties"] = False
            elif isinstance(others, Mapping):
                outline["additionalProperties"] = self._any(others)
        return outline


def _union_of(schema: Mapping[str, Any]) -> str | None:
    """The keyword of a schema's union; None if types or literals stand beside it."""
    if not schema.keys().isdisjoint(("type", "properties", *LITERAL)):
        return None
    return next((key for key in _UNIONS if isinstance(schema.get(key), list)), None)


def _is_of(value: Any, types: Sequence[str]) -> bool:
    kind = json_type(value)
    return kind in types or (kind == "integer" and "number" in types)
