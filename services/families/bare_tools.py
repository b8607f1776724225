"""Reduces a request's tools to what a parser needs: their names, and the types of their arguments.

Agents send 20 to 30 tools with every request, tens of kilobytes of descriptions for the model. A parse context holds
about a tenth of that.

`types_json` decodes the JSON of the tools into a type with only these fields: 43 us for 62 KB of tools, where `bare`
takes 360. It uses `bare` for what the type cannot represent: a schema without members (which differs from one without
types), references to parts that are dropped, and nesting beyond the decoder's limit.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, Union

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from schemas.conversation import ToolSpec
from services.families.tool_types import CONTAINERS

_INNER: Final = frozenset({"items", "additionalProperties"})
_NAMED: Final = frozenset({"properties", "$defs", "definitions"})
_CHOICES: Final = frozenset({"anyOf", "oneOf", "allOf"})
_KEPT: Final = frozenset({"type", "nullable", "const", "enum", "$ref"}) | _NAMED | _CHOICES
_MAX_DEPTH: Final = 64
_KEPT_EMPTY: Final = re.compile(rb'"(?:properties|\$defs|definitions)":\{\}')
_REFERENCE: Final = re.compile(rb'"\$ref":(?!"(?:[^#"]|#/(?:properties|\$defs|definitions)/[^/"]*"))')
"""Matches a reference that may lead to a dropped part."""

_Leaf: TypeAlias = str | int | float | bool | UnsetType | None
_Inner: TypeAlias = Union["_Schema", list[Any], _Leaf]
_Named: TypeAlias = dict[str, _Inner] | list[Any] | _Leaf
_Choices: TypeAlias = list[_Inner] | dict[str, Any] | _Leaf


class _Schema(Struct, rename={"ref": "$ref", "defs": "$defs"}):
    """The members of a schema that `bare` keeps."""

    type: Any = UNSET
    nullable: Any = UNSET
    const: Any = UNSET
    enum: Any = UNSET
    ref: Any = UNSET
    items: _Inner = UNSET
    additionalProperties: _Inner = UNSET
    properties: _Named = UNSET
    defs: _Named = UNSET
    definitions: _Named = UNSET
    anyOf: _Choices = UNSET
    oneOf: _Choices = UNSET
    allOf: _Choices = UNSET

    def __post_init__(self) -> None:
        if self.type is UNSET and all(getattr(self, name) is UNSET for name in self.__struct_fields__):
            self.type = sorted(CONTAINERS)


class _Tool(Struct):
    name: str
    tool_schema: _Schema | UnsetType = field(default=UNSET, name="schema")


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[_Tool]).decode


def types_json(tools: Sequence[ToolSpec], tools_json: bytes) -> bytes:
    """Returns the result of `bare` as JSON. `tools_json`: the tools as msgspec encodes them."""
    empty = tools_json.count(b"{}") - len(_KEPT_EMPTY.findall(tools_json))
    if not empty and _REFERENCE.search(tools_json) is None:
        try:
            return _encode(_decode(tools_json))
        except (msgspec.ValidationError, RecursionError):
            pass
    return _encode(bare(tools))


def bare(tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    """Removes everything but names and schemas from tools, and everything but types from schemas. Every parser
    produces the same events as with the full tools."""
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
    """Returns whether `_bare` keeps every place that a reference leads to."""
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
