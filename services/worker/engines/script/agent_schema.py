"""Makes the smallest JSON value that fits a schema: the scripted agent's structured output. Pure."""

from typing import Any

_DEPTH = 12
"""Schemas may refer to themselves; real answers are not nested deeper."""


def instance(schema: dict[str, Any], text: str) -> Any:
    """A value that fits `schema`, with `text` wherever any string fits.

    Covers types, required properties, constants, enums, bounds, lengths, alternatives and local references, but neither
    patterns nor formats.
    """
    return _instance(schema, text, schema, _DEPTH)


def _instance(schema: Any, text: str, root: dict[str, Any], depth: int) -> Any:
    if not isinstance(schema, dict) or depth == 0:
        return None
    if "$ref" in schema:
        return _instance(_resolve(schema["$ref"], root), text, root, depth - 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return _instance(schema[key][0], text, root, depth - 1)
    if schema.get("allOf"):
        merged = {name: value for part in schema["allOf"] if isinstance(part, dict) for name, value in part.items()}
        return _instance({**merged, **{k: v for k, v in schema.items() if k != "allOf"}}, text, root, depth - 1)
    return _typed(schema, text, root, depth)


def _typed(schema: dict[str, Any], text: str, root: dict[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    if kind == "object":
        properties = schema.get("properties") or {}
        names = schema.get("required") or []
        return {name: _instance(properties.get(name, {}), text, root, depth - 1) for name in names}
    if kind == "array":
        return [_instance(schema.get("items", {}), text, root, depth - 1) for _ in range(schema.get("minItems", 0))]
    if kind in {"integer", "number"}:
        return _number(schema)
    if kind == "boolean":
        return False
    return None if kind == "null" else text[: schema.get("maxLength")].ljust(schema.get("minLength", 0), ".")


def _number(schema: dict[str, Any]) -> float:
    low = schema.get("minimum", schema["exclusiveMinimum"] + 1 if "exclusiveMinimum" in schema else None)
    high = schema.get("maximum", schema["exclusiveMaximum"] - 1 if "exclusiveMaximum" in schema else None)
    value: float = 0 if low is None else max(0, low)
    return value if high is None else min(value, high)


def _resolve(reference: str, root: dict[str, Any]) -> Any:
    node: Any = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        node = node.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) and name else node
    return node
