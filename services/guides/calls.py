"""Writes the grammar rules of a call: the family's markup, and arguments by a schema or a freeform
grammar."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from schemas.conversation import ToolSpec
from services.families import Family
from services.families.grammar.markup import Markup
from services.families.grammar.shapes import Shape
from services.families.readers.parameters import Parameters
from services.families.tool_types import types_of
from services.families.writing import ARGUMENTS, NAME, Tags, as_json
from services.guides.client_grammar import avoiding, embedded
from services.guides.json_regex import NotEmbeddable
from services.guides.writer import RuleWriter

SPACING: Final = {"whitespace_pattern": r"[ \t\r\n]{0,32}"}
"""Allows for a deep indent. Without a limit, small models write white space to the end of the
context window."""
_MAX_PARAMETERS: Final = 1 << 20
"""Limit of characters of the rules of a tool's parameters, each of which has all definitions of the
schema."""
_MAX_GRAMMARS: Final = 1 << 16
"""Limit of characters of all freeform grammars in a turn's grammar."""
_INPUT: Final = "input"
_CUSTOM: Final = {
    "type": "object",
    "properties": {_INPUT: {"type": "string"}},
    "required": [_INPUT],
}
_LITERAL: Final = ("enum", "const")
_BEYOND_TYPES: Final = (*_LITERAL, "pattern", "format", "minLength", "maxLength")
"""Keywords that restrict a string. For a string without quotes only its own `enum` or `const` can
be enforced."""
_FORMATS: Final = frozenset(
    {
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
        "unknown",
    }
)
"""The formats that llguidance supports. JSON Schema lets other formats restrict nothing."""


class Unguidable(ValueError):
    """The family's calls cannot be restricted by a grammar."""


class CallRules:
    """Writes calls of one family. `lost` collects the promises that cannot be kept, as `PROMISE
    TOOL`."""

    def __init__(self, family: Family, writer: RuleWriter, stops: Sequence[str] = ()) -> None:
        """`stops`: the text of the tokens that end the turn. Raises Unguidable."""
        style = family.style
        self._before_arguments, arguments, self._after_arguments = style.call.partition(ARGUMENTS)
        for stop in (*stops, *family.stops):  # the engine ends there by itself
            self._after_arguments = self._after_arguments.removesuffix(stop)
        self._style, self._writer = style, writer
        self._parameters = _parameters(family)
        if not arguments or not (style.arguments is as_json or self._parameters is not None):
            raise Unguidable(f"the calls of {family.name} have a form of their own")
        self.lost: list[str] = []
        self._bodies: dict[str, str] = {}
        self._room = _MAX_GRAMMARS

    def before_arguments(self, tool: ToolSpec) -> str:
        """The text of a call before its arguments."""
        return self._before_arguments.replace(NAME, tool.name)

    def call(self, tool: ToolSpec, written: str) -> str:
        """The rest of a call that begins with `written`."""
        writer = self._writer
        if (body := self._bodies.get(tool.name)) is None:
            body = (
                self._json(tool)
                if self._parameters is None
                else self._tagged(tool, self._parameters)
            )
            self._bodies[tool.name] = body
        before = self.before_arguments(tool).removeprefix(written)
        after = self._after_arguments.replace(NAME, tool.name)
        return writer.rule(
            " ".join(filter(None, [self._counted(before), body, self._counted(after)]))
        )

    def _counted(self, text: str) -> str:
        """Literal text, except that the call's number may be any."""
        counter = self._style.counter
        if not counter or counter not in text:
            return self._writer.literal(text)
        before, after = text.split(counter, 1)
        left, right = re.split("[0-9]", counter, maxsplit=1)
        number = self._writer.terminal("/[0-9]{1,4}/")
        return (
            f"{self._writer.literal(before + left)} {number} {self._writer.literal(right + after)}"
        )

    # -- arguments that are one JSON object
    # -------------------------------------------------------------------------

    def _json(self, tool: ToolSpec) -> str:
        if tool.kind == "custom":
            if tool.grammar is not None and (start := self._embed(tool, in_json=True)):
                opener = self._writer.terminal('/\\{ ?"input" ?: ?"/')
                closer = self._writer.terminal('/" ?\\}/')
                return f"{opener} {start} {closer}"
            return self.schema({**_CUSTOM, "additionalProperties": False})
        return self.schema(
            {"type": "object", **_known_formats(tool.schema)} if tool.strict else {"type": "object"}
        )

    def schema(self, schema: Mapping[str, Any]) -> str:
        """A JSON value of this schema."""
        return self._writer.rule(
            f"%json {json.dumps({**schema, 'x-guidance': SPACING}, ensure_ascii=False)}"
        )

    def _embed(self, tool: ToolSpec, *, in_json: bool, closers: tuple[str, ...] = ()) -> str:
        """The start rule of the tool's own grammar; "" if it cannot be embedded."""
        assert tool.grammar is not None
        prefix = f"g{len(self._writer.lines)}"
        self._room -= len(tool.grammar.definition)
        try:
            if self._room < 0:
                raise NotEmbeddable("too many grammars")
            start, lines = embedded(tool.grammar, f"{prefix}_", in_json=in_json, closers=closers)
        except NotEmbeddable:
            self.lost.append(f"grammar {tool.name}")
            return ""
        self._writer.lines += lines
        return start

    # -- arguments with tags
    # ----------------------------------------------------------------------------------------

    def _tagged(self, tool: ToolSpec, grammar: Parameters) -> str:
        schema: Mapping[str, Any] = (
            _CUSTOM if tool.kind == "custom" else _known_formats(tool.schema)
        )
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        # A closer that ends in another closer is that one after text that a value may contain:
        # `]]></param>`.
        closes = [
            text
            for text in grammar.closes
            if not any(end != text and end in text for end in grammar.closes)
        ]
        heads = [
            *dict.fromkeys(Shape(text).head for text in (*closes, *grammar.opens, *grammar.ends))
        ]
        closers = tuple(
            head for head in heads if not any(other in head for other in heads if other != head)
        )
        if tool.kind != "custom" and not tool.strict:
            return self._free(properties, closers)
        required = schema.get("required") or ()
        try:
            if not isinstance(required, Sequence):  # clients send anything as a schema
                raise Unguidable(tool.name)
            if len(properties) * (1024 + len(json.dumps(_definitions(schema)))) > _MAX_PARAMETERS:
                raise Unguidable(tool.name)
            values = [(key, [*self._values(tool, key, schema, closers)]) for key in properties]
        except Unguidable:
            self.lost.append(f"strict {tool.name}")
            return self._free(properties, closers)
        tags = [(key, self._writer.choice(forms)) for key, forms in values]
        return " ".join(tag if key in required else f"{tag}?" for key, tag in tags)

    def _free(self, properties: Mapping[str, Any], closers: tuple[str, ...]) -> str:
        """Any arguments. The parser converts them to their types."""
        text = self._writer.text_without(closers)
        keys: list[str | None] = [*properties] or [None]
        tags = [self._tag(key, "string", text, ends_lazily=True) for key in keys]
        return f"{self._writer.choice(tags)}*"

    def _values(
        self, tool: ToolSpec, key: str, schema: Mapping[str, Any], closers: tuple[str, ...]
    ) -> Iterator[str]:
        """The tag of a parameter, in each form that its value may have. Raises Unguidable."""
        if tool.grammar is not None and (
            start := self._embed(tool, in_json=False, closers=closers)
        ):
            yield self._tag(
                key, "string", start, ends_lazily=tool.grammar.syntax == "regex", optional=False
            )
            return
        own = schema["properties"][key]
        if not isinstance(own, Mapping):
            raise Unguidable(key)
        types = types_of(own, schema) if tool.kind != "custom" else {"string"}
        others = sorted(types - {"string"})
        if "string" in types:
            literals = own.get("enum") or ([own["const"]] if "const" in own else None)
            if literals is not None:
                texts = isinstance(literals, list) and all(
                    isinstance(value, str) for value in literals
                )
                if not texts or not _limits(own) <= {*_LITERAL}:
                    raise Unguidable(key)
                yield from (
                    self._tag(key, "string", self._writer.literal(value)) for value in literals
                )
                return
            if _limits(_resolved_text(own, schema)):
                raise Unguidable(key)
            yield self._tag(key, "string", self._writer.text_without(closers), ends_lazily=True)
            if others and self._tags.states_types:
                yield from (self._tag(key, other, self.schema({"type": other})) for other in others)
            return
        guarded = _guarded({**_definitions(schema), **own}, avoiding(closers))
        yield self._tag(key, others[0] if others else "object", self.schema(guarded))

    @property
    def _tags(self) -> Tags:
        assert isinstance(self._style.arguments, Tags)
        return self._style.arguments

    def _tag(
        self,
        key: str | None,
        kind: str,
        value: str,
        *,
        ends_lazily: bool = False,
        optional: bool = True,
    ) -> str:
        """One parameter; `key` None: with any name. `ends_lazily`: `value` is a terminal up to the
        closing tag, which may be empty if it is `optional`."""
        writer = self._writer
        before, after = self._tags.around("{key}" if key is None else key, kind)
        if key is not None:
            opened = writer.literal(before)
        else:
            any_name = writer.terminal("/[A-Za-z_][A-Za-z0-9_.-]{0,63}/")
            opened = any_name.join(f" {writer.literal(piece)} " for piece in before.split("{key}"))
        closed = (
            writer.until(value, after, optional=optional)
            if ends_lazily
            else f"{value} {writer.literal(after)}"
        )
        return writer.rule(f"{opened} {closed}")


def _definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: schema[name] for name in ("$defs", "definitions") if name in schema}


def _changed(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Applies `change` to all parts of a schema, the inner ones first. Literal values stay."""
    if isinstance(schema, list):
        return [_changed(value, change) for value in schema]
    if not isinstance(schema, Mapping):
        return schema
    return change(
        {
            key: value if key in _LITERAL else _changed(value, change)
            for key, value in schema.items()
        }
    )


def _known_formats(schema: Any) -> Any:
    """Removes formats that restrict nothing from a schema."""

    def change(part: dict[str, Any]) -> dict[str, Any]:
        unknown = isinstance(part.get("format"), str) and part["format"] not in _FORMATS
        return {key: value for key, value in part.items() if key != "format"} if unknown else part

    return _changed(schema, change)


def _limits(value: Any) -> set[str]:
    """The keywords that may restrict a string, anywhere in a schema."""
    if isinstance(value, Mapping):
        return {key for key in value if key in _BEYOND_TYPES}.union(*map(_limits, value.values()))
    return set().union(*map(_limits, value)) if isinstance(value, list) else set()


def _resolved_text(own: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """A schema together with everything that its references may lead to."""
    refers = "$ref" in json.dumps(own)
    return [own, *(root.get(name) for name in ("$defs", "definitions"))] if refers else own


def _guarded(schema: Any, pattern: str | None) -> Any:
    """Adds a pattern to the schema's strings, because the family's parser would end the value at a
    marker in one."""

    def change(part: dict[str, Any]) -> dict[str, Any]:
        typed = isinstance(part.get("type"), str | list)
        if typed and "string" in types_of(part, {}) and not {*_LITERAL, "pattern"} & part.keys():
            part["pattern"] = pattern
        if "properties" in part:  # names of other members could hold a marker, too
            part.setdefault("additionalProperties", False)
        return part

    return schema if pattern is None else _changed(schema, change)


def _parameters(family: Family) -> Parameters | None:
    """The reader of the family's argument tags; None if it has no such tags."""
    if not isinstance(family.style.arguments, Tags) or not isinstance(family.grammar, Markup):
        return None
    return next(
        (call.body for call in family.grammar.calls if isinstance(call.body, Parameters)), None
    )
