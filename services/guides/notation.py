"""Writes the grammar rules of the arguments of a call in notations of families' own: Python's
literals, Gemma's objects, and MiniMax's nested tags.

The schema of a tool gives names, order and types of its arguments. What is inside of a list or an
object is any value of the notation.
"""

import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from msgspec.structs import replace
from typing_extensions import override

from schemas.conversation import ToolSpec
from services.families.tool_types import CONTAINERS, resolved, types_of
from services.guides.arguments import ArgumentRules
from services.guides.tool_schemas import CUSTOM_SCHEMA
from services.guides.writer import RuleWriter, Unguidable
from services.runtime.long_work import levels

_TYPES: Final = ("string", "number", "integer", "boolean", "null", "array", "object")
_NOTES: Final = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
)
"""Keywords that restrict nothing."""
_PART: Final = _NOTES | {"type"}
_WHOLE: Final = _PART | {
    *("properties", "required", "additionalProperties", "$schema", "$id", "$defs", "definitions"),
}
_ANY_VALUE: Final = "any_value"
_PYTHON: Final = {"true": "True", "false": "False", "null": "None"}
_KEYWORD: Final = re.compile(r"""[^\s:=,{}\[\]<>"']{1,256}""")
_GEMMA_KEY: Final = re.compile(r"""[^:=,{}\[\]<>"'\r\n]{1,256}""")
_ELEMENT: Final = re.compile(r"""(?!(invoke|tool_call)\Z)[^\s<>"'][^\s<>"']{0,255}""")
_CONTAINERS: Final = frozenset({"array", "object"})
_ITEM: Final = "item"


class Argument(NamedTuple):
    """An argument, or an element inside of one."""

    key: str
    types: Collection[str]
    """JSON types; none: it is any value."""
    is_required: bool = False


class NotationArguments(ArgumentRules):
    """The arguments of calls in one notation."""

    @override
    def rule(self, tool: ToolSpec) -> str:
        if tool.grammar is not None:
            self.lose("grammar", tool)
        if tool.kind == "custom":
            tool = replace(tool, schema=CUSTOM_SCHEMA, strict=True)
        if not tool.strict:
            return self.free(tool.schema)

        if not _states_only_types(tool.schema):
            self.lose("strict", tool)
        arguments = _arguments(tool.schema)
        if not arguments and _whole(tool.schema).get("additionalProperties") is not False:
            return self.free(tool.schema)
        try:
            return self.typed(arguments, tool.schema)
        except Unguidable:
            self.lose("strict", tool)
            return self.free(tool.schema)

    @abstractmethod
    def typed(self, arguments: Sequence[Argument], schema: Mapping[str, Any]) -> str:
        """These arguments, in order; `schema`: that of the tool. Raises Unguidable for a key that
        the notation cannot express."""

    @abstractmethod
    def free(self, schema: Mapping[str, Any]) -> str:
        """Any arguments of a tool with this schema."""


class Separated(NotationArguments):
    """Values with brackets and commas."""

    opener: ClassVar[str] = ""
    closer: ClassVar[str] = ""
    """Around all arguments."""

    def __init__(self, writer: RuleWriter, lost: list[str]) -> None:
        super().__init__(writer, lost)
        self._has_any_value = False

    @abstractmethod
    def string(self) -> str:
        """Any string."""

    @abstractmethod
    def constant(self, name: str) -> str:
        """`true`, `false` or `null`."""

    @abstractmethod
    def key(self, key: str) -> str:
        """The text before the value of an argument. Raises Unguidable."""

    @abstractmethod
    def any_key(self) -> str:
        """The text before the value of any argument."""

    @abstractmethod
    def any_member_key(self) -> str:
        """The text before the value of any member of an object."""

    @override
    def typed(self, arguments: Sequence[Argument], schema: Mapping[str, Any]) -> str:
        rule = self.writer.rule
        separator = self._separator
        following = ""  # the arguments from here on, after another one
        begun: list[str] = []  # the same, for each argument that may come first
        for argument in reversed(arguments):
            item = f"{self.key(argument.key)} {self._value(argument.types)}"
            if argument.is_required:
                begun = []
            begun.append(rule(f"{item} {following}"))
            count = "" if argument.is_required else "?"
            following = rule(f"({separator} {item}){count} {following}")
        written = f"({' | '.join(begun)})" if begun else ""
        if begun and not any(argument.is_required for argument in arguments):
            written += "?"
        return self._between(self.opener, written, self.closer)

    @override
    def free(self, schema: Mapping[str, Any]) -> str:
        return self._several(self.opener, f"{self.any_key()} {self._any_value()}", self.closer)

    @property
    def _separator(self) -> str:
        return self.writer.terminal(r"/,[ \t\r\n]{0,32}/")

    def _value(self, types: Collection[str]) -> str:
        if not types:
            return self._any_value()
        return self.writer.choice(map(self._typed, types))

    def _any_value(self) -> str:
        if not self._has_any_value:
            self._has_any_value = True
            choices = " | ".join(map(self._typed, _TYPES))
            self.writer.lines.append(f"{_ANY_VALUE}: {choices}")
        return _ANY_VALUE

    def _typed(self, name: str) -> str:
        match name:
            case "string":
                return self.string()
            case "array":
                return self._several("[", self._any_value(), "]")
            case "object":
                member = f"{self.any_member_key()} {self._any_value()}"
                return self._several("{", member, "}")
            case "boolean":
                return self.writer.choice(map(self.constant, ("true", "false")))
            case "null":
                return self.constant("null")
        return self.writer.schema({"type": name})

    def _several(self, opener: str, item: str, closer: str) -> str:
        items = self.writer.rule(f"{item} ({self._separator} {item})*")
        return self._between(opener, f"{items}?", closer)

    def _between(self, opener: str, inner: str, closer: str) -> str:
        literal = self.writer.literal
        return self.writer.rule(f"{literal(opener)} {inner} {literal(closer)}")


class PythonArguments(Separated):
    """Python's literals by keyword."""

    @override
    def string(self) -> str:
        escape = r"\\(?:[\\'\"nrtbf]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})"
        double, single = (rf"{quote}(?:[^{quote}\\]|{escape})*{quote}" for quote in ('"', "'"))
        return self.writer.terminal(f"/{double}|{single}/")

    @override
    def constant(self, name: str) -> str:
        return self.writer.choice(map(self.writer.literal, (_PYTHON[name], name)))

    @override
    def key(self, key: str) -> str:
        if not _KEYWORD.fullmatch(key):
            raise Unguidable(key)
        return self.writer.literal(f"{key}=")

    @override
    def any_key(self) -> str:
        return self.writer.terminal("/[A-Za-z_][A-Za-z0-9_]{0,63}=/")

    @override
    def any_member_key(self) -> str:
        colon = self.writer.terminal(r"/:[ \t]{0,4}/")
        return f"{self.string()} {colon}"


class GemmaArguments(Separated):
    """An object of Gemma's, with a token for quotes."""

    opener = "{"
    closer = "}"

    def __init__(
        self, writer: RuleWriter, lost: list[str], token: str, markers: Sequence[str]
    ) -> None:
        """`markers`: the other markers of calls, which no string has."""
        super().__init__(writer, lost)
        self._token = token
        self._markers = (token, *markers)

    @override
    def string(self) -> str:
        text = self.writer.text_without(self._markers)
        opener = self.writer.literal(self._token)
        return self.writer.rule(f"{opener} {self.writer.until(text, self._token)}")

    @override
    def constant(self, name: str) -> str:
        return self.writer.literal(name)

    @override
    def key(self, key: str) -> str:
        if not _GEMMA_KEY.fullmatch(key) or key != key.strip():
            raise Unguidable(key)
        return self.writer.literal(f"{key}:")

    @override
    def any_key(self) -> str:
        return self.writer.terminal("/[A-Za-z_][A-Za-z0-9_.-]{0,63}:/")

    @override
    def any_member_key(self) -> str:
        return self.any_key()


class NestedArguments(NotationArguments):
    """Elements with a namespace token before each tag. Text stands without quotes, and the parser
    reads it by the types of the schema: so all elements have the names that the schema has."""

    def __init__(self, writer: RuleWriter, lost: list[str], token: str) -> None:
        super().__init__(writer, lost)
        self._token = token

    @override
    def typed(self, arguments: Sequence[Argument], schema: Mapping[str, Any]) -> str:
        inner = self._inner(schema)
        elements = [
            self._element(argument, inner) + ("" if argument.is_required else "?")
            for argument in arguments
        ]
        return " ".join(elements)

    @override
    def free(self, schema: Mapping[str, Any]) -> str:
        inner = self._inner(schema)
        writable = [item for item in _arguments(schema) if _ELEMENT.fullmatch(item.key)]
        elements = [self._element(argument, inner) for argument in writable]
        return f"{self.writer.choice(elements)}*" if elements else ""

    def _inner(self, schema: Mapping[str, Any]) -> "_Inner":
        """Adds the rules for elements inside of lists and objects."""
        item, member = (f"{kind}{len(self.writer.lines)}" for kind in ("item", "member"))
        inner = _Inner(item, "")
        names = _inner_types(schema)
        others = [key for key in names if key != _ITEM and _ELEMENT.fullmatch(key)]
        if others:
            inner = _Inner(item, member)
            elements = [self._element(Argument(key, names[key]), inner) for key in others]
            self.writer.lines.append(f"{member}: {' | '.join(elements)}")
        rule = self._element(Argument(_ITEM, names[_ITEM]), inner)
        self.writer.lines.append(f"{item}: {rule}")
        return inner

    def _element(self, argument: Argument, inner: "_Inner") -> str:
        key = argument.key
        if not _ELEMENT.fullmatch(key):
            raise Unguidable(key)
        opener = self.writer.literal(f"{self._token}<{key}>")
        closer = f"{self._token}</{key}>"
        text = self.writer.until(self.writer.text_without([self._token]), closer)
        if "string" in argument.types:
            return self.writer.rule(f"{opener} {text}")
        closed = self.writer.literal(closer)
        if argument.types:
            values = [f"{self._value(name, inner)} {closed}" for name in argument.types]
        else:
            values = [text, *(f"{elements}+ {closed}" for elements in filter(None, inner))]
        return self.writer.rule(f"{opener} ({' | '.join(values)})")

    def _value(self, name: str, inner: "_Inner") -> str:
        """A value of a type other than string."""
        if name == "array":
            return f"{inner.item}*"
        value = self.writer.schema({"type": name})
        return f"({value} | {inner.member}+)" if name == "object" and inner.member else value


class _Inner(NamedTuple):
    """The rules for elements inside of others."""

    item: str
    member: str
    """"": the schema has no names of members."""


def _whole(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a tool after its reference."""
    return resolved(schema, schema)


def _arguments(schema: Mapping[str, Any]) -> list[Argument]:
    """The arguments that a tool's schema lists."""
    whole = _whole(schema)
    properties, required = whole.get("properties"), whole.get("required")
    if not isinstance(properties, Mapping):
        return []
    if not isinstance(required, list):
        required = []
    return [
        Argument(key, _types(part, schema), key in required) for key, part in properties.items()
    ]


def _types(part: Any, root: Mapping[str, Any]) -> list[str]:
    """The types of an argument; [] for any."""
    types = types_of(part, root)
    return [] if types == CONTAINERS else [name for name in _TYPES if name in types]


def _inner_types(schema: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names of the members and items that a schema has at any place. Those that are not lists
    or objects anywhere are texts: the parser finds no elements in a text."""
    names: dict[str, set[str]] = {_ITEM: set()}
    for part in _parts(schema):
        properties = part.get("properties")
        if isinstance(properties, Mapping):
            for key, member in properties.items():
                names.setdefault(key, set()).update(types_of(member, schema))
        if "items" in part or "array" in types_of(part, schema):
            names[_ITEM] |= types_of(part.get("items"), schema)
    return {
        key: ["string"] if types and types.isdisjoint(_CONTAINERS) else []
        for key, types in names.items()
    }


def _parts(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for level in levels(schema):
        yield from (part for part in level if isinstance(part, Mapping))


def _states_only_types(schema: Mapping[str, Any]) -> bool:
    """Whether a tool's schema demands nothing that `typed` leaves out."""
    whole = _whole(schema)
    properties, required = whole.get("properties", {}), whole.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return False
    if not whole.keys() <= _WHOLE or any(key not in properties for key in required):
        return False
    if not properties and isinstance(whole.get("additionalProperties"), Mapping):
        return False
    return all(_states_only_type(part, schema) for part in properties.values())


def _states_only_type(part: Any, root: Mapping[str, Any]) -> bool:
    return part is True or (isinstance(part, Mapping) and resolved(part, root).keys() <= _PART)
