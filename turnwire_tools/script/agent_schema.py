"""Makes the smallest JSON value that fits a schema: the scripted agent's structured output.
Pure."""

from typing import Any

from services.families.tool_types import resolved

_DEPTH = 12
"""Schemas may refer to themselves; real answers are not nested deeper."""


def instance(schema: dict[str, Any], text: str) -> Any:
    """A value that fits `schema`, with `text` wherever any string fits.

    Covers types, required properties, constants, enums, bounds, lengths, alternatives and local
    references, but neither patterns nor formats.
    """

    def value_of(node: Any, depth: int) -> Any:
        if not isinstance(node, dict) or depth == 0:
            return None
        if "$ref" in node:
            return value_of(resolved(node, schema), depth - 1)
        if "const" in node:
            return node["const"]
        if node.get("enum"):
            return node["enum"][0]
        if alternatives := node.get("anyOf") or node.get("oneOf"):
            return value_of(alternatives[0], depth - 1)
        if parts := node.get("allOf"):
            merged = {
                name: value
                for part in parts
                if isinstance(part, dict)
                for name, value in part.items()
            }
            return value_of(
                {**merged, **{k: v for k, v in node.items() if k != "allOf"}}, depth - 1
            )
        kind = node.get("type", "object" if "properties" in node else "string")
        if isinstance(kind, list):
            kind = next((name for name in kind if name != "null"), "null")
        if kind == "object":
            properties = node.get("properties") or {}
            return {
                name: value_of(properties.get(name, {}), depth - 1)
                for name in node.get("required") or []
            }
        if kind == "array":
            return [
                value_of(node.get("items", {}), depth - 1) for _ in range(node.get("minItems", 0))
            ]
        if kind in {"integer", "number"}:
            return _number(node)
        if kind == "boolean":
            return False
        return (
            None
            if kind == "null"
            else text[: node.get("maxLength")].ljust(node.get("minLength", 0), ".")
        )

    return value_of(schema, _DEPTH)


def _number(schema: dict[str, Any]) -> float:
    low = schema.get(
        "minimum", schema["exclusiveMinimum"] + 1 if "exclusiveMinimum" in schema else None
    )
    high = schema.get(
        "maximum", schema["exclusiveMaximum"] - 1 if "exclusiveMaximum" in schema else None
    )
    value: float = 0 if low is None else max(0, low)
    return value if high is None else min(value, high)
