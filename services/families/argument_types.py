"""Checks the arguments of a call against the schema of its tool: required members, and types. Other
demands of a schema are not checked, and neither is a part with an unknown form."""

from collections.abc import Mapping
from typing import Any, Final

from services.families.tool_types import CONTAINERS, json_type, resolved

_MAX_DEPTH: Final = 32
_UNIONS: Final = {"allOf": all, "anyOf": any, "oneOf": any}
_TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


def fits(arguments: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a JSON value has the members and types that a schema demands."""
    return _Check(schema).fits(arguments, schema, 0)


class _Check:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._done: dict[tuple[int, int], bool] = {}
        """The results of values and schemas. Without it, branches that refer to each other take
        exponential time."""

    def fits(self, value: Any, schema: Any, depth: int) -> bool:
        schema = resolved(schema, self._root)
        if not schema or depth == _MAX_DEPTH:
            return True
        visit = (id(value), id(schema))
        if visit not in self._done:
            self._done[visit] = True
            self._done[visit] = self._has_all(value, schema, depth + 1)
        return self._done[visit]

    def _has_all(self, value: Any, schema: Mapping[str, Any], depth: int) -> bool:
        if value is None and schema.get("nullable") is True:
            return True
        if not _has_type(value, schema.get("type")):
            return False
        for union, combine in _UNIONS.items():
            branches = schema.get(union)
            if not isinstance(branches, list) or not branches:
                continue
            if not combine(self.fits(value, branch, depth) for branch in branches):
                return False
        if isinstance(value, list):
            return all(self.fits(item, schema.get("items"), depth) for item in value)
        return not isinstance(value, dict) or self._members_fit(value, schema, depth)

    def _members_fit(self, value: dict[str, Any], schema: Mapping[str, Any], depth: int) -> bool:
        required = schema.get("required")
        if isinstance(required, list) and any(
            isinstance(key, str) and key not in value for key in required
        ):
            return False
        properties = schema.get("properties")
        return not isinstance(properties, Mapping) or all(
            self.fits(item, properties.get(key), depth) for key, item in value.items()
        )


def _has_type(value: Any, stated: Any) -> bool:
    """Whether a value has one of the types that `type` states."""
    names = stated if isinstance(stated, list) else [stated]
    if not names or not all(isinstance(name, str) and name in _TYPES for name in names):
        return True
    if CONTAINERS.issubset(names):  # `bare_tools` writes it for a schema without types
        return True
    kind = json_type(value)
    if kind == "integer":
        return "integer" in names or "number" in names
    if kind == "number" and "integer" in names and value.is_integer():
        return True
    return kind in names
