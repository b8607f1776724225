"""Reduces a request's tools to what a parser needs: their names, and the types of their arguments.

Agents send 20 to 30 tools with every request, tens of kilobytes of descriptions for the model. A
parse context holds about a tenth of that: the JSON of each schema is read into a type that has
nothing else. A tool with a schema that the type cannot represent stays whole: one with a member
`{}`, which is not the same as a schema without types, with references to places that are not kept,
or nested beyond the decoder's limit.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, Union

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from schemas.conversation import ToolSpec
from services.families.tool_types import CONTAINERS

_EMPTY: Final = re.compile(rb'\{\}(?<!"properties":\{\})(?<!"\$defs":\{\})(?<!"definitions":\{\})')
"""Matches an empty object, except an empty list of schemas."""
_REFERENCE: Final = re.compile(
    rb'"\$ref":(?!"(?:[^#"]|#/(?:properties|\$defs|definitions)/[^/"]*"))'
)
"""Matches a reference that may lead to a dropped part."""

_Leaf: TypeAlias = str | int | float | bool | UnsetType | None
_Inner: TypeAlias = Union["_ReducedSchema", list[Any], _Leaf]
_NamedSchemas: TypeAlias = dict[str, _Inner] | list[Any] | _Leaf
_UnionBranches: TypeAlias = list[_Inner] | dict[str, Any] | _Leaf


class _ReducedSchema(Struct, rename={"ref": "$ref", "defs": "$defs"}):
    """The members of a schema that `bare` keeps."""

    type: Any = UNSET
    required: Any = UNSET
    nullable: Any = UNSET
    const: Any = UNSET
    enum: Any = UNSET
    ref: Any = UNSET
    items: _Inner = UNSET
    additionalProperties: _Inner = UNSET
    properties: _NamedSchemas = UNSET
    defs: _NamedSchemas = UNSET
    definitions: _NamedSchemas = UNSET
    anyOf: _UnionBranches = UNSET
    oneOf: _UnionBranches = UNSET
    allOf: _UnionBranches = UNSET

    def __post_init__(self) -> None:
        # A schema without types is not the same as no schema.
        if self.type is UNSET and all(
            getattr(self, name) is UNSET for name in self.__struct_fields__
        ):
            self.type = sorted(CONTAINERS)


class _ReducedTool(Struct):
    name: str
    tool_schema: _ReducedSchema | dict[str, Any] | UnsetType = field(default=UNSET, name="schema")


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_ReducedSchema).decode


def reduced_json(tools: Sequence[ToolSpec]) -> bytes:
    """The tools as JSON with names and types only. Every parser gives the same events with them as
    with the tools themselves. Raises RecursionError for a schema that is nested too deeply to be
    written."""
    return _encode([_ReducedTool(tool.name, _reduced(tool.schema)) for tool in tools])


def _reduced(schema: dict[str, Any]) -> _ReducedSchema | dict[str, Any] | UnsetType:
    data = _encode(schema)
    if _EMPTY.search(data) is None and _REFERENCE.search(data) is None:
        with suppress(msgspec.ValidationError, RecursionError):
            return _decode(data)
    return schema or UNSET
