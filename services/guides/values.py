"""Writes the grammar rules of JSON values by their schemas in notations of families' own: Python's
literals, Gemma's objects, and MiniMax's nested tags."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from typing_extensions import override

from services.families.tool_types import resolved, types_of
from services.guides.tool_schemas import LITERAL, literals_of, stated_types, text_limits
from services.guides.writer import RuleWriter, Unguidable

_UNIONS: Final = ("anyOf", "oneOf")
_BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_READ: Final = frozenset(
    {
        *("type", "properties", "required", "items", "minItems", "maxItems", "$ref", *_UNIONS),
        *("additionalProperties", "$defs", "definitions", *LITERAL, *_BOUNDS),
        # these restrict nothing
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$schema", "$id", "$comment"),
    }
)
_TYPES: Final = ("string", "number", "boolean", "null", "array", "object")
_PYTHON: Final = {"true": "True", "false": "False", "null": "None"}
_MOST_ITEMS: Final = 1024
"""Limit of a list with a least number of items and no other limit."""
_ANY_VALUE: Final = "any_value"
_KEYWORD: Final = re.compile(r"""[^\s:=,{}\[\]<>"']{1,256}""")
_GEMMA_KEY: Final = re.compile(r"""[^:=,{}\[\]<>"'\r\n]{1,256}""")
_ELEMENT: Final = re.compile(r"""[^<>"'\r\n]{1,256}""")
Members: TypeAlias = Sequence[tuple[str, bool]]
"""Rules of an object's members in order, each with whether the member is required."""


class Place(NamedTuple):
    """Where a schema stands."""

    root: Mapping[str, Any]
    references: frozenset[str] = frozenset()
    """The references that lead to it."""


class ValueRules(ABC):
    """Values in one notation. Methods return the names or bodies of rules, and raise Unguidable for
    what the notation, or a grammar of it, cannot express."""

    def __init__(self, writer: RuleWriter) -> None:
        self.writer = writer
        self._has_any_value = False

    @abstractmethod
    def string(self) -> str:
        """Any string."""

    @abstractmethod
    def text(self, text: str) -> str:
        """This string."""

    @abstractmethod
    def constant(self, name: str) -> str:
        """`true`, `false` or `null`."""

    @abstractmethod
    def array(self, item: Any, place: "Place", count: str) -> str:
        """A list of items with the schema `item`; `count`: how many, as a rule repeats them."""

    @abstractmethod
    def object(self, members: Members) -> str:
        """An object with these members."""

    @abstractmethod
    def member(self, key: str, schema: Any, place: "Place") -> str:
        """A member of an object."""

    @abstractmethod
    def any_object(self, others: Any, place: "Place") -> str:
        """An object with any members; `others` is the schema of their values."""

    def value(self, schema: Any, place: "Place") -> str:
        """A value of a schema."""
        if isinstance(schema, Mapping) and "$ref" in schema:
            reference = str(schema["$ref"])
            if reference in place.references:
                raise Unguidable("a schema in itself")
            place = Place(place.root, place.references | {reference})
            schema = resolved(schema, place.root)
        if schema is True:
            schema = {}
        if not isinstance(schema, Mapping) or "$ref" in schema or not schema.keys() <= _READ:
            raise Unguidable("schema")
        choice = self.writer.choice
        for union in _UNIONS:
            if union in schema:
                return choice([self.value(option, place) for option in schema[union]])
        literals = literals_of(schema)
        if literals:
            return choice(list(map(self._literal, literals)))
        types = stated_types(schema)
        if not types:
            return self.any_value()
        return choice([self._typed(name, schema, place) for name in types])

    def any_value(self) -> str:
        """Any value."""
        if not self._has_any_value:
            self._has_any_value = True
            choices = " | ".join(self._typed(name, {}, Place({})) for name in _TYPES)
            self.writer.lines.append(f"{_ANY_VALUE}: {choices}")
        return _ANY_VALUE

    def _literal(self, value: Any) -> str:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping | list):
            raise Unguidable("a literal object or list")
        spelled = json.dumps(value)
        if spelled.isalpha():
            return self.constant(spelled)
        return self.writer.literal(spelled)

    def _typed(self, name: str, schema: Mapping[str, Any], place: "Place") -> str:
        if name == "string":
            return self.string()
        if name in ("integer", "number"):
            bounds = {name: schema[name] for name in _BOUNDS if name in schema}
            return self.writer.schema({"type": name, **bounds})
        if name == "boolean":
            return self.writer.choice([self.constant("true"), self.constant("false")])
        if name == "null":
            return self.constant("null")
        if name == "array":
            return self.array(schema.get("items", True), place, _count(schema))
        if name == "object":
            return self.members(schema, place)
        raise Unguidable(name)

    def members(self, schema: Mapping[str, Any], place: "Place") -> str:
        """An object with the members of a schema, in order."""
        properties = schema.get("properties")
        if not properties:
            return self.any_object(schema.get("additionalProperties"), place)
        required = schema.get("required", [])
        members = [
            (self.member(key, value, place), key in required) for key, value in properties.items()
        ]
        return self.object(members)


class Separated(ValueRules):
    """Values with brackets and commas."""

    separator: ClassVar[str] = r"/,[ \t\r\n]{0,32}/"

    @override
    def array(self, item: Any, place: Place, count: str) -> str:
        return self._several("[", self.value(item, place), "]", count)

    @override
    def object(self, members: Members) -> str:
        opener, closer = self.writer.literal("{"), self.writer.literal("}")
        return self.writer.rule(f"{opener} {self.in_order(members)} {closer}")

    @override
    def any_object(self, others: Any, place: Place) -> str:
        if others is False:
            return self.object([])
        value = self.value(others or {}, place)
        return self._several("{", self.any_member(value), "}", "*")

    @abstractmethod
    def any_member(self, value: str) -> str:
        """A member of an object, with any key and this value."""

    def _several(self, opener: str, item: str, closer: str, count: str) -> str:
        literal = self.writer.literal
        return self.writer.rule(f"{literal(opener)} {self.repeated(item, count)} {literal(closer)}")

    def repeated(self, item: str, count: str = "*") -> str:
        """Items with separators between them; `count` as in `array`."""
        separator = self.writer.terminal(self.separator)
        if count == "*":
            return self.writer.rule(f"{item} ({separator} {item})*") + "?"
        least, most = map(int, count.strip("{}").split(","))
        if not most:
            return ""
        body = self.writer.rule(f"{item} ({separator} {item}){{{max(least - 1, 0)},{most - 1}}}")
        if not least:
            body += "?"
        return body

    def in_order(self, items: Members) -> str:
        """Items in order, without some that are not required, and separators between them."""
        rule = self.writer.rule
        separator = self.writer.terminal(self.separator)
        first = ""  # the items from here on, if none is written yet
        following = ""  # the same, if one is
        for item, is_required in reversed(items):
            begun = f"{item} {following}"
            if is_required:
                first = rule(begun)
                following = rule(f"{separator} {begun}")
            else:
                if not first:
                    first = f"{rule(begun)}?"
                else:
                    first = rule(f"{begun} | {first}")
                following = rule(f"({separator} {item})? {following}")
        return first


class PythonValues(Separated):
    """Python literals; a call has its arguments by keyword."""

    @override
    def string(self) -> str:
        escape = r"\\(?:[\\'\"nrtbf]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})"
        double, single = (rf"{quote}(?:[^{quote}\\]|{escape})*{quote}" for quote in ('"', "'"))
        return self.writer.terminal(f"/{double}|{single}/")

    @override
    def text(self, text: str) -> str:
        spellings = dict.fromkeys((repr(text), json.dumps(text, ensure_ascii=False)))
        return self.writer.choice(map(self.writer.literal, spellings))

    @override
    def constant(self, name: str) -> str:
        return self.writer.choice(map(self.writer.literal, (_PYTHON[name], name)))

    @override
    def member(self, key: str, schema: Any, place: Place) -> str:
        return self.writer.rule(f"{self.text(key)} {self._colon()} {self.value(schema, place)}")

    @override
    def any_member(self, value: str) -> str:
        return self.writer.rule(f"{self.string()} {self._colon()} {value}")

    def _colon(self) -> str:
        return self.writer.terminal(r"/:[ \t]{0,4}/")

    def keyword(self, key: str, value: str) -> str:
        """An argument of a call."""
        if not _KEYWORD.fullmatch(key):
            raise Unguidable(key)
        return self.writer.rule(f"{self.writer.literal(key + '=')} {value}")


class GemmaValues(Separated):
    """Gemma's objects, with `token` for quotes."""

    def __init__(self, writer: RuleWriter, token: str, markers: Sequence[str]) -> None:
        """`markers`: the other markers of calls, which no string has."""
        super().__init__(writer)
        self._token = token
        self._markers = (token, *markers)

    @override
    def string(self) -> str:
        text = self.writer.text_without(self._markers)
        opener = self.writer.literal(self._token)
        return self.writer.rule(f"{opener} {self.writer.until(text, self._token)}")

    @override
    def text(self, text: str) -> str:
        if any(marker in text for marker in self._markers):
            raise Unguidable(text)
        return self.writer.literal(self._token + text + self._token)

    @override
    def constant(self, name: str) -> str:
        return self.writer.literal(name)

    @override
    def member(self, key: str, schema: Any, place: Place) -> str:
        if not _GEMMA_KEY.fullmatch(key) or key != key.strip():
            raise Unguidable(key)
        return self.writer.rule(f"{self.writer.literal(key + ':')} {self.value(schema, place)}")

    @override
    def any_member(self, value: str) -> str:
        key = self.writer.terminal("/[A-Za-z_][A-Za-z0-9_.-]{0,63}:/")
        return self.writer.rule(f"{key} {value}")


class NestedValues(ValueRules):
    """Elements with a namespace token before each tag. Text stands without quotes."""

    def __init__(self, writer: RuleWriter, token: str) -> None:
        super().__init__(writer)
        self._token = token

    @override
    def string(self) -> str:
        raise Unguidable("text without its element")

    @override
    def text(self, text: str) -> str:
        if self._token in text:
            raise Unguidable(text)
        return self.writer.literal(text)

    @override
    def constant(self, name: str) -> str:
        return self.writer.literal(name)

    @override
    def array(self, item: Any, place: Place, count: str) -> str:
        return self.writer.rule(f"{self.member('item', item, place)}{count}")

    @override
    def object(self, members: Members) -> str:
        return " ".join(member + ("" if required else "?") for member, required in members)

    @override
    def member(self, key: str, schema: Any, place: Place) -> str:
        if not _ELEMENT.fullmatch(key) or key in ("invoke", "tool_call"):
            raise Unguidable(key)
        opener = self.writer.literal(f"{self._token}<{key}>")
        closer = f"{self._token}</{key}>"
        types = types_of(schema, place.root)
        if "string" in types and not (isinstance(schema, Mapping) and schema.keys() & LITERAL):
            if text_limits(schema, place.root):
                raise Unguidable(key)
            text = self.writer.text_without([self._token])
            return self.writer.rule(f"{opener} {self.writer.until(text, closer)}")
        value = self.value(schema, place)
        return self.writer.rule(f"{opener} {value} {self.writer.literal(closer)}")

    @override
    def any_object(self, others: Any, place: Place) -> str:
        if others not in (None, True, {}):
            raise Unguidable("members of one schema")
        return self.writer.schema({"type": "object"})


def _count(schema: Mapping[str, Any]) -> str:
    """How many items a list has, as a rule repeats them."""
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if least or most is not None:
        return f"{{{least},{_MOST_ITEMS if most is None else most}}}"
    return "*"
