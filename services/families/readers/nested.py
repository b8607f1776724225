"""Reads calls with arguments as nested tags, each after a namespace token; the schema gives the types.

    NS<invoke name="N"> NS<key>value NS</key> NS<list>NS<item>1 NS</item> NS</list> NS</invoke>

A string argument streams; any other is written at its end. Consecutive repeats of an argument form a list.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from json import loads
from re import compile, escape
from typing import Any, Final

from services.families.grammar.scanner import Reader, Trigger, quoted
from services.families.grammar.shapes import MarkerMatch, Markers, Shape
from services.families.grammar.turn import CallOpener, TurnState
from services.families.readers.bare_text import StringSink, coerced, copy_text
from services.families.readers.parameters import Tag
from services.families.tool_types import STRING, member, resolved, types_of
from services.families.writing import as_text

_MAX_DEPTH: Final = 64


@dataclass(frozen=True)
class Nested:
    """The grammar: the namespace token, and the heads of markers that may follow a call."""

    token: str
    beyond: tuple[str, ...]

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[str | None]:
        """Reads the call. An opener that ends in `key>` includes the start of its first element."""
        name = turn.tools.named(opener.name or "")
        elided = compile(r""">\s*([^\s<>"']+)>\Z""").search(opener.text)
        turn.open_call(name)
        turn.blocks.close((yield from _Invocation(self, turn, name).read(opener, elided[1] if elided else None)))
        return None

    @cached_property
    def tags(self) -> Markers[Tag]:
        """All tags; `OPEN` and `CLOSE` mean an element's."""
        return Markers(
            [
                (Shape(self.token + "</invoke>"), Tag.END),
                *((Shape(self.token + head), Tag.BEYOND) for head in self.beyond),
                (Shape(self.token + "</{key}>"), Tag.CLOSE),
                (Shape(self.token + "<{key}>"), Tag.OPEN),
            ]
        )

    @cached_property
    def trigger(self) -> Trigger:
        """Finds text in a string that must pass the reader."""
        return compile(f"[{escape(self.token[0])}]").search


class _Invocation:
    __slots__ = ("_any", "_grammar", "_pending", "_root", "_turn")

    def __init__(self, grammar: Nested, turn: TurnState, name: str) -> None:
        self._grammar, self._turn = grammar, turn
        self._root = turn.tools.schema(name)
        self._any = False
        self._pending: tuple[str, list[str]] = ("", [])

    def read(self, opener: CallOpener, elided: str | None) -> Reader[bool]:
        """Reads to the end of the call; returns whether it is whole. It is not if the next call opens before any
        argument or closer."""
        scanner = self._turn.scanner
        if elided is not None and not (yield from self._argument(elided)):
            return False
        while True:
            found = yield from scanner.seek(self._grammar.tags)
            if found is None:
                if not (self._any or self._pending[1]) or not scanner.stopped or scanner.rest().strip():
                    return False
                break
            if found.meaning is not Tag.BEYOND:
                scanner.position = found.match.end()
            if found.meaning is Tag.BEYOND and not (self._any or self._pending[1]) and found.match[0] in opener.text:
                return False
            if found.meaning in (Tag.END, Tag.BEYOND):
                break
            if found.meaning is Tag.OPEN and not (yield from self._argument(found.match["key"])):
                return False
        self._flush()
        self._turn.blocks.write("}" if self._any else "{}")
        return True

    def _argument(self, key: str) -> Reader[bool]:
        schema = member(self._root, key, self._root)
        if schema is None or types_of(schema, self._root) == STRING:
            self._flush()
            self._begin(key)
            return (yield from self._string(key))
        value = yield from self._element(schema, 0)
        if value is None:
            return False
        if self._pending[0] != key:
            self._flush()
            self._pending = (key, [])
        self._pending[1].append(value)
        return True

    def _begin(self, key: str) -> None:
        self._turn.blocks.write((", " if self._any else "{") + quoted(key) + ": ")
        self._any = True

    def _flush(self) -> None:
        key, values = self._pending
        if values:
            self._begin(key)
            self._turn.blocks.write(values[0] if len(values) == 1 else f"[{', '.join(values)}]")
            self._pending = ("", [])

    def _string(self, key: str) -> Reader[bool]:
        """Reads a value that is text up to its own closer."""
        scanner, sink, closer = self._turn.scanner, StringSink(self._turn.blocks.write), f"</{key}>"

        def ends(found: MarkerMatch[Tag]) -> bool:
            return found.meaning is Tag.END or found.match[0].endswith(closer)

        found = yield from copy_text(scanner, self._grammar.tags, ends, sink, self._grammar.trigger)
        if found is None:
            return False
        if found.meaning is not Tag.END:
            scanner.position = found.match.end()
        sink.end()
        return True

    def _element(self, schema: Any, depth: int) -> Reader[str | None]:
        """Reads an element and its closer; returns its value as JSON, None if the input ends in it."""
        schema = resolved(schema, self._root)
        children: list[tuple[str, str]] = []
        text: list[str] = []
        scanner = self._turn.scanner
        while True:
            scanner.record()
            found = yield from scanner.seek(self._grammar.tags)
            text.append(scanner.recorded())
            if found is None:
                return None
            nests = found.meaning is Tag.OPEN and depth < _MAX_DEPTH
            if nests or found.meaning is Tag.CLOSE:
                scanner.position = found.match.end()
            if not nests:
                return self._value(schema, "".join(text), children)
            key = found.match["key"]
            child = yield from self._element(member(schema, key, self._root), depth + 1)
            if child is None:
                return None
            children.append((key, child))

    def _value(self, schema: Mapping[str, Any], text: str, children: list[tuple[str, str]]) -> str:
        types = types_of(schema, self._root) if schema else frozenset[str]()
        if not children:
            return self._leaf(schema, types, text)
        if "array" in types - {"object"} or ("properties" not in schema and all(key == "item" for key, _ in children)):
            return f"[{', '.join(value for _, value in children)}]"
        members: dict[str, list[str]] = {"$text": [quoted(text)]} if text.strip() else {}
        for key, value in children:
            members.setdefault(key, []).append(value)
        written = (f"{quoted(k)}: {v[0] if len(v) == 1 else '[' + ', '.join(v) + ']'}" for k, v in members.items())
        return f"{{{', '.join(written)}}}"

    def _leaf(self, schema: Mapping[str, Any], types: frozenset[str], text: str) -> str:
        if not types:
            return text if _is_json(text) else quoted(text)
        if "string" not in types:
            if not text.strip() and types & {"array", "object"}:
                return "[]" if "array" in types else "{}"
            if types == {"array"} and text.lstrip()[:1] != "[":
                return f"[{coerced(text, types_of(schema.get('items'), self._root))}]"
        return coerced(text, types)


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
