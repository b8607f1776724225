"""Makes the smallest JSON value that fits a schema: the scripted agent's structured output.
Pure."""

from typing import Any, TypeAlias

from msgspec import Struct

from services.families.tool_types import resolved

Schema: TypeAlias = dict[str, Any]
"""A JSON schema."""
_DEPTH = 12
"""Schemas may refer to themselves; real answers are not nested deeper."""
MAX_VALUES = 1_000
MAX_CHARS = 10_000
"""Limits of the values in an answer, and of the characters of a text: a schema may demand any
number."""


def instance(schema: Schema, text: str) -> Any:
    """A value that fits `schema`, with `text` wherever any string fits.

    Covers types, required properties, constants, enums, bounds, lengths, alternatives and local
    references, but neither patterns nor formats. None for a schema that is invalid: a client may
    send anything.
    """
    try:
        return _Instance(schema, text).value_of(schema, _DEPTH)
    except (AttributeError, KeyError, TypeError):
        return None


class _Instance(Struct):
    """A value in the making."""

    schema: Schema
    """The whole schema, for references."""
    text: str
    left: int = MAX_VALUES
    """Values that may still be made."""

    def value_of(self, node: Any, depth: int) -> Any:
        """The value of a part of the schema."""
        self.left -= 1
        if not isinstance(node, dict) or depth == 0:
            return None
        if "$ref" in node:
            return self.value_of(resolved(node, self.schema), depth - 1)
        if "const" in node:
            return node["const"]
        if node.get("enum"):
            return node["enum"][0]
        return self._composed(node, depth)

    def _composed(self, node: Schema, depth: int) -> Any:
        """The value of alternatives or parts, else of the node's own type."""
        alternatives = node.get("anyOf") or node.get("oneOf")
        if alternatives:
            return self.value_of(alternatives[0], depth - 1)
        if node.get("allOf"):
            return self.value_of(_merged(node), depth - 1)
        return self._of_type(node, depth)

    def _of_type(self, node: Schema, depth: int) -> Any:
        match _type_of(node):
            case "object":
                properties = node.get("properties") or {}
                names = [name for name in node.get("required") or [] if isinstance(name, str)]
                return {name: self.value_of(properties.get(name, {}), depth - 1) for name in names}
            case "array":
                items = node.get("items", {})
                count = min(node.get("minItems", 0), self.left)
                return [self.value_of(items, depth - 1) for _ in range(count)]
            case "integer" | "number":
                return _number(node)
            case "boolean":
                return False
            case "null":
                return None
        return self.text[: node.get("maxLength")].ljust(
            min(node.get("minLength", 0), MAX_CHARS), "."
        )


def _merged(node: Schema) -> Schema:
    """A schema with its `allOf` as one; its own members come first."""
    merged: Schema = {}
    for part in node["allOf"]:
        if isinstance(part, dict):
            merged |= part
    return merged | {key: value for key, value in node.items() if key != "allOf"}


def _type_of(node: Schema) -> Any:
    """The type of a schema, of several the first that is not null."""
    default = "object" if "properties" in node else "string"
    kind = node.get("type", default)
    if isinstance(kind, list):
        return next((name for name in kind if name != "null"), "null")
    return kind


def _number(schema: Schema) -> float:
    low = schema.get("minimum", _beyond(schema, "exclusiveMinimum", 1))
    high = schema.get("maximum", _beyond(schema, "exclusiveMaximum", -1))
    value: float = 0
    if low is not None:
        value = max(value, low)
    if high is not None:
        value = min(value, high)
    return value


def _beyond(schema: Schema, bound: str, step: int) -> Any:
    """The number that is a step beyond an exclusive bound; None where there is none."""
    return schema[bound] + step if bound in schema else None
