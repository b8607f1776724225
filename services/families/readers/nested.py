"""Reads calls with arguments as nested tags, each after a namespace token; the schema gives the
types.

    NS<invoke name="N"> NS<key>value NS</key> NS<list>NS<item>1 NS</item> NS</list> NS</invoke>

A string argument streams; any other is written at its end. A string ends at its own closer if a tag
follows, outside of calls that it shows. A call with an argument twice, with text between two tags,
or with a tag without its counterpart never completes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from json import loads
from re import compile, escape
from typing import Any, Final, NamedTuple

from services.families.grammar.scanner import PlainStretch, Reader, Search, quoted
from services.families.grammar.shapes import END, MarkerMatch, Markers, Shape, with_meaning
from services.families.grammar.turn_state import IS_CALL, CallOpener, CallReading, TurnState
from services.families.readers.arguments import ArgumentWriter
from services.families.readers.bare_text import coerced, copy_text
from services.families.readers.value_sinks import StringSink
from services.families.readers.value_tags import (
    MENTIONABLE,
    QuotedCalls,
    ShownTags,
    Tag,
    next_tag,
)
from services.families.tool_types import NULLABLE_STRING, STRING, member, resolved, types_of
from services.families.writing import as_text

_FIRST_KEY: Final = compile(r""">\s*([^\s<>"']+)>\Z""")
_MAX_DEPTH: Final = 64
_CONTAINERS: Final = frozenset({"object", "array"})
_TEXTS: Final = (STRING, NULLABLE_STRING)
"""The types of values that stream as text."""


@dataclass(frozen=True)
class Nested:
    """The grammar: the namespace token, and the heads of markers that may follow a call."""

    token: str
    next_markers: tuple[str, ...]

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[CallReading]:
        """Reads the call. An opener that ends in `key>` includes the start of its first element."""
        name = turn.tools.registered_name(opener.name or "")
        elided = _FIRST_KEY.search(opener.text)
        turn.open_call(name)
        invocation = _Invocation(self, turn, name)
        complete = yield from invocation.read(elided[1] if elided else None)
        turn.blocks.end_call(complete, self.find_stray_end, all_closed=invocation.all_closed)
        return IS_CALL

    @cached_property
    def tags(self) -> Markers[Tag]:
        """All tags; `VALUE_START` and `VALUE_END` mean an element's."""
        return Markers(
            [
                (Shape(self.token + "</invoke>"), Tag.CALL_END),
                *with_meaning(Tag.AFTER_CALL, (self.token + head for head in self.next_markers)),
                (Shape(self.token + "</{key}>"), Tag.VALUE_END),
                (Shape(self.token + "<{key}>"), Tag.VALUE_START),
            ]
        )

    @cached_property
    def inside(self) -> Markers[Tag]:
        """Tags that a string may contain, or that end it."""
        call = self.token + "<invoke name={q}{name}{q}>"
        end = self.token + "</invoke>"
        last = end + "{ws}" + self.token + "</tool_call>"
        return Markers(
            [
                (Shape(call, then=(self.token,)), Tag.CALL_START),
                *with_meaning(Tag.FINAL_CALL_END, (end, last), then=(END,)),
                (Shape(end), Tag.CALL_END),
                (Shape(self.token + "</{key}>", then=(self.token, END)), Tag.VALUE_END),
                (Shape(self.token + "</{key}>"), Tag.STRAY_VALUE_END),
                (Shape(self.token + "<{key}>"), Tag.VALUE_START),
            ]
        )

    @cached_property
    def find_stray_end(self) -> Search:
        """Finds the end of a call at the end of text."""
        tag = escape(self.token) + "</"
        return compile(rf"{tag}[^<>]*>\s*{tag}invoke>(?:\s|{tag}tool_call>)*\Z").search

    @cached_property
    def stretch(self) -> PlainStretch:
        """The text of a string."""
        return PlainStretch(compile(escape(self.token[0])).search, escape=True)


class _Content(NamedTuple):
    """The content of an element, between its tags."""

    text: str
    children: list[tuple[str, str]]
    """The elements in it, in order: key, and value as JSON."""
    end: MarkerMatch[Tag]
    """The tag that ends it; not its own closer, if that is missing."""


class _Invocation:
    def __init__(self, grammar: Nested, turn: TurnState, name: str) -> None:
        self._grammar = grammar
        self._turn = turn
        self._root = turn.tools.schema(name)
        self._arguments = ArgumentWriter(turn.blocks)
        self._shown = ShownTags(turn.tools.parameters(name), self._arguments.keys)
        self.all_closed = True
        """The call's own closer ended it, and all of its arguments have theirs."""

    def read(self, elided: str | None) -> Reader[bool]:
        """Reads to the end of the call; returns whether it is complete. It is not if the next call
        opens before any argument or closer."""
        if elided is not None and not (yield from self._argument(elided)):
            return False
        while True:
            tag = yield from next_tag(self._turn.scanner, self._grammar.tags, self._arguments)
            if tag is None or tag.meaning in (Tag.CALL_END, Tag.AFTER_CALL):
                break
            if tag.meaning is Tag.VALUE_END:
                self._arguments.broken = True
            elif not (yield from self._argument(tag.match["key"].strip())):
                return False
        if not self._ends(tag) or not self._shown.are_text:
            return False
        closed = tag is not None and tag.meaning is Tag.CALL_END
        self._arguments.end()
        self.all_closed = self.all_closed and closed and not self._arguments.broken
        return not self._arguments.broken

    def _ends(self, tag: MarkerMatch[Tag] | None) -> bool:
        """Whether the call ends with the tag after its arguments, or with the input."""
        if tag is None:
            return bool(self._arguments.keys) and self._turn.scanner.stopped_here
        return bool(self._arguments.keys) or tag.meaning is Tag.CALL_END

    def _argument(self, key: str) -> Reader[bool]:
        schema = member(self._root, key, self._root)
        types = STRING if schema is None else types_of(schema, self._root)
        if types in _TEXTS:
            self._arguments.begin(key)
            stretch = None if self._arguments.broken else self._grammar.stretch
            sink = StringSink(self._arguments.write, nullable=types != STRING)
            return (yield from self._string(key, sink, stretch))
        value = yield from self._element(key, schema, 0)
        if value is None:
            return False
        self._arguments.begin(key)
        self._arguments.write(value)
        return True

    def _string(self, key: str, sink: StringSink, stretch: PlainStretch | None) -> Reader[bool]:
        """Reads a value that is text up to its own closer; returns False if the input ends in
        it."""
        scanner = self._turn.scanner
        quoted_calls = QuotedCalls()

        def ends(tag: MarkerMatch[Tag], mentioned: bool) -> bool:
            name = tag.match.groupdict().get("key", "")
            if quoted_calls.add(tag.meaning, name):
                return False
            if tag.meaning is Tag.FINAL_CALL_END:
                return not quoted_calls.seen
            if tag.meaning is Tag.VALUE_END and name == key:
                return True
            if tag.meaning is not Tag.CALL_END and not mentioned:
                self._shown.add(tag.meaning, name, inside=key)
            return False

        tag = yield from copy_text(
            scanner, self._grammar.inside, ends, sink, stretch, mentionable=MENTIONABLE
        )
        if tag is None:
            return False
        self._shown.end_value()
        if tag.meaning is Tag.VALUE_END:
            scanner.position = tag.match.end()
        else:
            self._arguments.broken = True
            self.all_closed = False
        sink.end()
        return True

    def _element(self, key: str, schema: Any, depth: int) -> Reader[str | None]:
        """Reads an element and its closer; returns its value as JSON, None if the input ends in
        it."""
        schema = resolved(schema, self._root)
        types = types_of(schema, self._root) if schema else frozenset[str]()
        if types in _TEXTS:
            return (yield from self._string_element(key, types))
        content = yield from self._content(schema, depth)
        if content is None:
            return None
        value = self._value(schema, types, content)
        admits_children = not types or not types.isdisjoint(_CONTAINERS)
        is_mixed = bool(content.children and content.text.strip())
        if is_mixed or (content.children and not admits_children):
            self._arguments.broken = True
        if not self._is_closed(key, content, value):
            self._arguments.broken = True
        return value

    def _is_closed(self, key: str, content: _Content, value: str) -> bool:
        """Whether element `key` ends where its content does: at its own closer, or without one if
        it is one value of another type than string."""
        if content.end.meaning is Tag.VALUE_END:
            return content.end.match["key"].strip() == key
        self.all_closed = False
        return not content.children and value[0] != '"'

    def _content(self, schema: Any, depth: int) -> Reader[_Content | None]:
        """Reads text and elements up to the tag that ends them, which is passed if it closes an
        element; None if the input ends in them."""
        children: list[tuple[str, str]] = []
        texts: list[str] = []
        while True:
            tag = yield from self._element_tag(texts, deepest=depth == _MAX_DEPTH)
            if tag is None:
                return None
            if tag.meaning is not Tag.VALUE_START:
                return _Content("".join(texts), children, tag)
            key = tag.match["key"].strip()
            child = yield from self._element(key, member(schema, key, self._root), depth + 1)
            if child is None:
                return None
            children.append((key, child))

    def _string_element(self, key: str, types: frozenset[str]) -> Reader[str | None]:
        written: list[str] = []
        sink = StringSink(written.append, nullable=types != STRING)
        if not (yield from self._string(key, sink, None)):
            return None
        return "".join(written)

    def _element_tag(self, texts: list[str], *, deepest: bool) -> Reader[MarkerMatch[Tag] | None]:
        """Adds text to `texts` up to the next tag, which is passed if it opens or closes an
        element. `deepest`: elements are passed over, too."""
        scanner = self._turn.scanner
        skipped = 0
        while True:
            scanner.start_recording()
            tag = yield from scanner.seek(self._grammar.tags)
            texts.append(scanner.stop_recording())
            if tag is None:
                return None
            if tag.meaning in (Tag.VALUE_START, Tag.VALUE_END):
                scanner.position = tag.match.end()
            if deepest and tag.meaning is Tag.VALUE_START:
                skipped += 1
            elif skipped and tag.meaning is Tag.VALUE_END:
                skipped -= 1
            else:
                return tag

    def _value(self, schema: Mapping[str, Any], types: frozenset[str], content: _Content) -> str:
        if not content.children:
            return self._leaf(schema, types, content.text)
        only_items = all(key == "item" for key, _ in content.children)
        if "array" in types or (only_items and "properties" not in schema):
            return _list(value for _, value in content.children)
        members: dict[str, list[str]] = {}
        for key, value in content.children:
            members.setdefault(key, []).append(value)
        return _object(members)

    def _leaf(self, schema: Mapping[str, Any], types: frozenset[str], text: str) -> str:
        if not types and _is_json(text):
            return text
        if not types:
            return quoted(text)
        if "string" not in types:
            if not text.strip() and "array" in types:
                return "[]"
            if not text.strip() and "object" in types:
                return "{}"
            if types == {"array"} and text.lstrip()[:1] != "[":
                items = types_of(schema.get("items"), self._root)
                return _list([coerced(text, items)])
        return coerced(text, types)


def _list(values: Iterable[str]) -> str:
    return f"[{', '.join(values)}]"


def _object(members: Mapping[str, list[str]]) -> str:
    """An object; a member with several values is a list of them."""
    written: list[str] = []
    for key, values in members.items():
        value = values[0] if len(values) == 1 else _list(values)
        written.append(f"{quoted(key)}: {value}")
    return f"{{{', '.join(written)}}}"


def _is_json(text: str) -> bool:
    try:
        loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(constant)


@dataclass(frozen=True)
class NestedStyle:
    """Writes arguments as nested tags."""

    token: str

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        """Writes all arguments, in order."""
        return "".join(self._element(key, value) for key, value in arguments.items())

    def _element(self, key: str, value: Any) -> str:
        return f"{self.token}<{key}>{self._content(value)}{self.token}</{key}>"

    def _content(self, value: Any) -> str:
        if isinstance(value, Mapping):
            return self(value)
        if isinstance(value, list):
            return "".join(self._element("item", item) for item in value)
        return as_text(value)
