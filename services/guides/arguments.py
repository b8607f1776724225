"""Writes the grammar rules of the arguments of a call, by a schema or the own grammar of its tool:
one JSON object, or tags."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

from typing_extensions import override

from schemas.conversation import ToolSpec
from services.families.grammar.shapes import Shape
from services.families.readers.parameters import Parameters
from services.families.tool_types import types_of
from services.families.writing import Tags
from services.guides.client_grammar import avoiding, embedded
from services.guides.json_regex import NotEmbeddable
from services.guides.tool_schemas import (
    CUSTOM_SCHEMA,
    LITERAL,
    definitions,
    guarded,
    known_formats,
    limits_of,
    text_limits,
)
from services.guides.writer import RuleWriter, Unguidable

_MAX_PARAMETERS: Final = 1 << 20
"""Limit of characters of the rules of a tool's parameters. Each rule repeats all definitions of the
schema."""
_MAX_GRAMMARS: Final = 1 << 16
"""Limit of characters of all freeform grammars in a turn's grammar."""


class ArgumentRules(ABC):
    """The arguments of a family's calls."""

    def __init__(self, writer: RuleWriter, lost: list[str]) -> None:
        """`lost` collects the promises that cannot be kept, as `PROMISE TOOL`."""
        self.writer = writer
        self.lost = lost

    @abstractmethod
    def rule(self, tool: ToolSpec) -> str:
        """The arguments of a tool."""

    def lose(self, promise: str, tool: ToolSpec) -> None:
        """Notes that a promise cannot be kept."""
        self.lost.append(f"{promise} {tool.name}")


class FreeformGrammars:
    """Embeds the grammars of freeform tools. `lost` collects those that cannot be embedded."""

    def __init__(self, writer: RuleWriter, lost: list[str]) -> None:
        self._writer = writer
        self._lost = lost
        self._room = _MAX_GRAMMARS

    def embed(self, tool: ToolSpec, *, in_json: bool, closers: tuple[str, ...] = ()) -> str:
        """The start rule of the tool's own grammar; "" if it has none, or cannot be embedded."""
        grammar = tool.grammar
        if grammar is None:
            return ""
        prefix = f"g{len(self._writer.lines)}_"
        self._room -= len(grammar.definition)
        try:
            if self._room < 0:
                raise NotEmbeddable("too many grammars")
            start, lines = embedded(grammar, prefix, in_json=in_json, closers=closers)
        except NotEmbeddable:
            self._lost.append(f"grammar {tool.name}")
            return ""
        self._writer.lines += lines
        return start


class JsonArguments(ArgumentRules):
    """Arguments that are one JSON object."""

    def __init__(self, writer: RuleWriter, lost: list[str]) -> None:
        super().__init__(writer, lost)
        self._freeform = FreeformGrammars(writer, lost)

    @override
    def rule(self, tool: ToolSpec) -> str:
        if tool.kind == "custom":
            return self._input(tool)
        if not tool.strict:
            return self.writer.schema({"type": "object"})
        return self.writer.schema({"type": "object", **known_formats(tool.schema)})

    def _input(self, tool: ToolSpec) -> str:
        start = self._freeform.embed(tool, in_json=True)
        if not start:
            return self.writer.schema({**CUSTOM_SCHEMA, "additionalProperties": False})
        opener = self.writer.terminal('/\\{ ?"input" ?: ?"/')
        closer = self.writer.terminal('/" ?\\}/')
        return f"{opener} {start} {closer}"


class TaggedArguments(ArgumentRules):
    """Arguments that are tags, which cannot enforce the schemas of all strict tools."""

    def __init__(self, writer: RuleWriter, lost: list[str], tags: Tags, reader: Parameters) -> None:
        """`reader`: the family's reader of the tags."""
        super().__init__(writer, lost)
        self._freeform = FreeformGrammars(writer, lost)
        self._tags = tags
        self._closers = _closers(reader)

    @override
    def rule(self, tool: ToolSpec) -> str:
        schema: Mapping[str, Any] = CUSTOM_SCHEMA if tool.kind == "custom" else tool.schema
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            properties = {}
        if tool.kind != "custom" and not tool.strict:
            return self._free(properties)
        try:
            return self._strict(tool, known_formats(schema), properties)
        except Unguidable:
            self.lose("strict", tool)
            return self._free(properties)

    def _free(self, properties: Mapping[str, Any]) -> str:
        """Any arguments. The parser converts them to their types."""
        text = self.writer.text_without(self._closers)
        tags = [self._text_tag(key, text) for key in properties] or [self._any_tag(text)]
        return f"{self.writer.choice(tags)}*"

    def _strict(
        self, tool: ToolSpec, schema: Mapping[str, Any], properties: Mapping[str, Any]
    ) -> str:
        """The arguments by the schema. Raises Unguidable."""
        required = schema.get("required") or ()
        if not isinstance(required, Sequence):  # clients send anything as a schema
            raise Unguidable(tool.name)
        definition_chars = len(json.dumps(definitions(schema)))
        if len(properties) * (1024 + definition_chars) > _MAX_PARAMETERS:
            raise Unguidable(tool.name)

        forms = {key: self._forms(tool, key, schema) for key in properties}
        tags: list[str] = []
        for key, tag_forms in forms.items():
            tag = self.writer.choice(tag_forms)
            if key not in required:
                tag += "?"
            tags.append(tag)
        return " ".join(tags)

    def _forms(self, tool: ToolSpec, key: str, schema: Mapping[str, Any]) -> list[str]:
        """The tag of a parameter, in each form that its value may have. Raises Unguidable."""
        start = self._freeform.embed(tool, in_json=False, closers=self._closers)
        if start:
            return [self._grammar_tag(tool, key, start)]

        parameter = schema["properties"][key]
        if not isinstance(parameter, Mapping):
            raise Unguidable(key)
        types = {"string"} if tool.kind == "custom" else types_of(parameter, schema)
        other_types = sorted(types - {"string"})
        if "string" not in types:
            kind = other_types[0] if other_types else "object"
            value = {**definitions(schema), **parameter}
            rule = self.writer.schema(guarded(value, avoiding(self._closers)))
            return [self._value_tag(key, kind, rule)]

        literals = _literals(parameter)
        if literals is not None:
            return self._literal_tags(key, parameter, literals)
        if text_limits(parameter, schema):
            raise Unguidable(key)
        return self._text_forms(key, other_types)

    def _grammar_tag(self, tool: ToolSpec, key: str, start: str) -> str:
        assert tool.grammar is not None
        if tool.grammar.syntax == "regex":
            return self._text_tag(key, start, optional=False)
        return self._value_tag(key, "string", start)

    def _literal_tags(self, key: str, parameter: Mapping[str, Any], literals: Any) -> list[str]:
        are_texts = isinstance(literals, list) and all(isinstance(value, str) for value in literals)
        if not are_texts or not limits_of(parameter) <= LITERAL:
            raise Unguidable(key)
        return [self._value_tag(key, "string", self.writer.literal(text)) for text in literals]

    def _text_forms(self, key: str, other_types: Sequence[str]) -> list[str]:
        """Any text, or a value of another type in a tag that states it."""
        forms = [self._text_tag(key, self.writer.text_without(self._closers))]
        if self._tags.states_types:
            for kind in other_types:
                forms.append(self._value_tag(key, kind, self.writer.schema({"type": kind})))
        return forms

    def _value_tag(self, key: str, kind: str, value: str) -> str:
        """A parameter with a value of the JSON type `kind`."""
        before, after = self._tags.around(key, kind)
        opened = self.writer.literal(before)
        return self.writer.rule(f"{opened} {value} {self.writer.literal(after)}")

    def _text_tag(self, key: str, text: str, *, optional: bool = True) -> str:
        """A parameter with bare text. `text`: a terminal up to the closing tag; the value may be
        empty if it is `optional`."""
        before, after = self._tags.around(key, "string")
        opened = self.writer.literal(before)
        return self.writer.rule(f"{opened} {self.writer.until(text, after, optional=optional)}")

    def _any_tag(self, text: str) -> str:
        """A parameter with any name and bare text."""
        before, after = self._tags.around("{key}", "string")
        name = self.writer.terminal("/[A-Za-z_][A-Za-z0-9_.-]{0,63}/")
        opened = name.join(f" {self.writer.literal(piece)} " for piece in before.split("{key}"))
        return self.writer.rule(f"{opened} {self.writer.until(text, after)}")


def _literals(parameter: Mapping[str, Any]) -> Any:
    """The values that a parameter may have; None: they are not listed."""
    if parameter.get("enum"):
        return parameter["enum"]
    return [parameter["const"]] if "const" in parameter else None


def _closers(reader: Parameters) -> tuple[str, ...]:
    """The heads of markers that end a value."""
    # A closer that ends in another closer is that one after text that a value may contain:
    # `]]></param>`.
    closes = _without_supersets(reader.parameter_closers)
    heads = [Shape(text).head for text in (*closes, *reader.parameter_tags, *reader.call_closers)]
    return tuple(_without_supersets(list(dict.fromkeys(heads))))


def _without_supersets(texts: Sequence[str]) -> list[str]:
    """The texts that contain none of the others."""
    return [text for text in texts if not _contains_another(text, texts)]


def _contains_another(text: str, texts: Sequence[str]) -> bool:
    return any(other != text and other in text for other in texts)
