"""The tools of a request as a parser needs them: their names, and the types of their arguments.

A parse context has the tools as `bare_tools` reduces them.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

from schemas.conversation import ToolSpec

STRING: Final = frozenset({"string"})
NULLABLE_STRING: Final = frozenset({"string", "null"})
CONTAINERS: Final = frozenset({"object", "array", "string"})
"""The types assumed for a schema without types: an object or array stays one, anything else is
text."""
_UNIONS: Final = ("anyOf", "oneOf", "allOf")
_MAX_UNIONS: Final = 4
_MAX_REFERENCES: Final = 16


class Tools:
    """The tools of a request, by name."""

    __slots__ = ("_by_name",)

    def __init__(self, tools: Iterable[ToolSpec] = ()) -> None:
        self._by_name = {tool.name: tool for tool in tools}

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def registered_name(
        self, name: str, namespaces: tuple[str, ...] = (), *, unknown: bool = True
    ) -> str:
        """Returns the registered name of a tool: without a namespace that the format puts before it
        (`functions.f`) or a repetition (`f.f`). `unknown`: also strips the names of tools that are
        not registered."""
        if name in self._by_name:
            return name
        short = _without_namespace(name, namespaces)
        if short in self._by_name:
            return short
        head, _, tail = short.rpartition(".")
        if tail in self._by_name and (head == tail or namespaces):
            return tail
        return short if unknown else name

    def parameters(self, tool: str) -> Mapping[str, Any]:
        """The schemas of a tool's parameters; empty for an unknown tool."""
        schema = self.schema(tool)
        properties = resolved(schema, schema).get("properties")
        if isinstance(properties, Mapping):
            return properties
        return {}

    def schema(self, tool: str) -> Mapping[str, Any]:
        """The schema of a tool's arguments; empty for an unknown tool."""
        spec = self._by_name.get(tool)
        return {} if spec is None else spec.schema

    def types(self, tool: str, key: str) -> frozenset[str]:
        """The types that parameter `key` of `tool` may have; string if it is unknown."""
        root = self.schema(tool)
        schema = member(root, key, root)
        return STRING if schema is None else types_of(schema, root)


def _without_namespace(name: str, namespaces: tuple[str, ...]) -> str:
    for namespace in namespaces:
        if name.startswith(namespace) and name != namespace:
            return name[len(namespace) :]
    return name


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follows a reference of `schema` into `root`; empty if the result is not a schema."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        schema = _at(root, reference.removeprefix("#/").split("/"))
    return {}


def _at(schema: Any, path: Iterable[str]) -> Any:
    """The part of a schema at the steps of a JSON pointer; None if there is none."""
    for step in path:
        if not isinstance(schema, Mapping):
            return None
        schema = schema.get(step.replace("~1", "/").replace("~0", "~"))
    return schema


def member(schema: Any, key: str, root: Mapping[str, Any]) -> Any:
    """The schema of member `key` in objects that `schema` admits, or of the items in arrays; None
    if there is none."""
    return _member(schema, key, root, 0, {})


def _member(
    schema: Any, key: str, root: Mapping[str, Any], depth: int, done: dict[tuple[int, int], Any]
) -> Any:
    """`done`: the results of parts at a depth. Without it, branches that refer to each other take
    exponential time."""
    schema = resolved(schema, root)
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        return properties[key]
    for others in ("items", "additionalProperties"):
        other = schema.get(others)
        if other and isinstance(other, Mapping):
            return other
    visit = (id(schema), depth)
    if visit not in done:
        branches = chain.from_iterable(_branches(schema, union, depth) for union in _UNIONS)
        inner = (_member(branch, key, root, depth + 1, done) for branch in branches)
        done[visit] = next((other for other in inner if other is not None), None)
    return done[visit]


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that `schema` admits, from `type`, `nullable`, `enum`, `const`, `anyOf`,
    `oneOf`, `allOf` and `$ref`."""
    return _types_at(schema, root, 0, {})


def _types_at(
    schema: Any, root: Mapping[str, Any], depth: int, done: dict[tuple[int, int], frozenset[str]]
) -> frozenset[str]:
    """`done`: as in `_member`."""
    schema = resolved(schema, root)
    visit = (id(schema), depth)
    if visit not in done:
        types = (
            _stated_types(schema)
            or _union_types(schema, root, depth, done)
            or _implied_types(schema)
        )
        if schema.get("nullable") is True:
            types |= {"null"}
        done[visit] = types
    return done[visit]


def _stated_types(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """The types that `type` or the values state; None if neither is there."""
    declared = schema.get("type")
    values = schema.get("enum")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(name for name in declared if isinstance(name, str)) or STRING
    if "const" in schema:
        return frozenset({json_type(schema["const"])})
    if isinstance(values, list):
        return frozenset(map(json_type, values)) or STRING
    return None


def _union_types(
    schema: Mapping[str, Any],
    root: Mapping[str, Any],
    depth: int,
    done: dict[tuple[int, int], frozenset[str]],
) -> frozenset[str] | None:
    """The types of the first union; None if there is none."""
    for union in _UNIONS:
        branches = _branches(schema, union, depth)
        if branches:
            types = [_types_at(branch, root, depth + 1, done) for branch in branches]
            if union == "allOf":
                return _common_types(types)
            return frozenset().union(*types)
    return None


def _common_types(types: list[frozenset[str]]) -> frozenset[str]:
    """The types that all parts of an `allOf` admit; those of any where no type is common."""
    stated = [part for part in types if part != CONTAINERS] or types
    return frozenset.intersection(*stated) or frozenset().union(*stated)


def _implied_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types of a schema that states none."""
    if "properties" in schema or "additionalProperties" in schema:
        return frozenset({"object"})
    if "items" in schema:
        return frozenset({"array"})
    return CONTAINERS


def _branches(schema: Mapping[str, Any], union: str, depth: int) -> list[Any]:
    branches = schema.get(union)
    if isinstance(branches, list) and depth < _MAX_UNIONS:
        return branches
    return []


def json_type(value: Any) -> str:
    """The JSON type of a value."""
    names = {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
        dict: "object",
    }
    return names.get(type(value), "null")
