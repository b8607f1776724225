"""Reads calls with arguments as nested tags, each after a namespace token; the schema gives the
types.

    NS<invoke name="N"> NS<key>value NS</key> NS<list>NS<item>1 NS</item> NS</list> NS</invoke>

A string argument streams; any other is written at its end. A string ends at its own closer if a tag
follows, outside of calls that it shows. A call with an argument twice never completes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from json import loads
from re import compile, escape
from typing import Any, Final

from services.families.grammar.scanner import Reader, Trigger, quoted
from services.families.grammar.shapes import END, MarkerMatch, Markers, Shape
from services.families.grammar.turn import CallOpener, TurnState
from services.families.readers.bare_text import Shown, StringSink, Tag, coerced, copy_text
from services.families.tool_types import NULLABLE_STRING, STRING, member, resolved, types_of
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
        invocation = _Invocation(self, turn, name)
        complete = yield from invocation.read(opener, elided[1] if elided else None)
        turn.blocks.end_call(complete, self.torn, whole=invocation.whole)
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
    def inside(self) -> Markers[Tag]:
        """Tags that a string may contain, or that end it."""
        call, end, after = (
            "<invoke name={q}{name}{q}>",
            "</invoke>",
            "{ws}" + self.token + "</tool_call>",
        )
        return Markers(
            [
                (Shape(self.token + call, then=(self.token,)), Tag.CALL),
                *((Shape(self.token + end + then, then=(END,)), Tag.LAST) for then in ("", after)),
                (Shape(self.token + end), Tag.END),
                (Shape(self.token + "</{key}>", then=(self.token, END)), Tag.CLOSE),
                (Shape(self.token + "<{key}>"), Tag.OPEN),
            ]
        )

    @cached_property
    def torn(self) -> Trigger:
        """Finds the end of a call at the end of text."""
        tag = escape(self.token) + "</"
        return compile(rf"{tag}[^<>]*>\s*{tag}invoke>(?:\s|{tag}tool_call>)*\Z").search

    @cached_property
    def trigger(self) -> Trigger:
        """Finds text in a string that must pass the reader."""
        return compile(f"[{escape(self.token[0])}]").search


class _Invocation:
    def __init__(self, grammar: Nested, turn: TurnState, name: str) -> None:
        self._grammar, self._turn = grammar, turn
        self._root = turn.tools.schema(name)
        self.whole = True
        """The call's own closer ended it, and all of its arguments have theirs."""
        self._seen: set[str] = set()
        self._broken = False

    def read(self, opener: CallOpener, elided: str | None) -> Reader[bool]:
        """Reads to the end of the call; returns whether it is complete. It is not if the next call
        opens before any argument or closer."""
        scanner = self._turn.scanner
        if elided is not None and not (yield from self._argument(elided)):
            return False
        while True:
            found = yield from scanner.seek(self._grammar.tags)
            if found is None:
                if not self._seen or not scanner.stopped or scanner.rest().strip():
                    return False
                break
            if found.meaning is not Tag.BEYOND:
                scanner.position = found.match.end()
            if found.meaning is Tag.BEYOND and not self._seen and found.match[0] in opener.text:
                return False
            if found.meaning in (Tag.END, Tag.BEYOND):
                break
            if found.meaning is Tag.OPEN and not (yield from self._argument(found.match["key"])):
                return False
        self._write("}" if self._seen else "{}")
        self.whole = (
            self.whole and not self._broken and found is not None and found.meaning is Tag.END
        )
        return not self._broken

    def _argument(self, key: str) -> Reader[bool]:
        schema = member(self._root, key, self._root)
        types = STRING if schema is None else types_of(schema, self._root)
        if types <= NULLABLE_STRING and "string" in types:
            self._begin(key)
            trigger = None if self._broken else self._grammar.trigger
            return (
                yield from self._string(
                    key, StringSink(self._write, nullable=types != STRING), trigger
                )
            )
        value = yield from self._element(key, schema, 0)
        if value is None:
            return False
        self._begin(key)
        self._write(value)
        return True

    def _begin(self, key: str) -> None:
        self._broken = self._broken or key in self._seen
        self._write((", " if self._seen else "{") + quoted(key) + ": ")
        self._seen.add(key)

    def _write(self, text: str) -> None:
        if not self._broken:
            self._turn.blocks.write(text)

    def _string(self, key: str, sink: StringSink, trigger: Trigger | None) -> Reader[bool]:
        """Reads a value that is text up to its own closer; returns False if the input ends in it."""
        scanner, shown = self._turn.scanner, Shown()

        def ends(found: MarkerMatch[Tag], _: bool) -> bool:
            own = found.match.groupdict().get("key", "")
            return not shown.takes(found.meaning, own) and (
                (found.meaning is Tag.LAST and not shown.seen)
                or (found.meaning is Tag.CLOSE and own == key)
            )

        found = yield from copy_text(scanner, self._grammar.inside, ends, sink, trigger)
        if found is None:
            return False
        if found.meaning is Tag.CLOSE:
            scanner.position = found.match.end()
        else:
            self.whole = False
        sink.end()
        return True

    def _element(self, key: str, schema: Any, depth: int) -> Reader[str | None]:
        """Reads an element and its closer; returns its value as JSON, None if the input ends in it."""
        schema = resolved(schema, self._root)
        types = types_of(schema, self._root) if schema else frozenset[str]()
        if types <= NULLABLE_STRING and "string" in types:
            written: list[str] = []
            whole = yield from self._string(
                key, StringSink(written.append, nullable=types != STRING), None
            )
            return "".join(written) if whole else None
        children: list[tuple[str, str]] = []
        text: list[str] = []
        scanner, skipped = self._turn.scanner, 0
        while True:
            scanner.record()
            found = yield from scanner.seek(self._grammar.tags)
            text.append(scanner.recorded())
            if found is None:
                return None
            tag, own = found.meaning, found.match.groupdict().get("key")
            if tag in (Tag.OPEN, Tag.CLOSE):
                scanner.position = found.match.end()
            if depth == _MAX_DEPTH and (tag is Tag.OPEN or (tag is Tag.CLOSE and skipped)):
                skipped += 1 if tag is Tag.OPEN else -1
                continue
            if tag is not Tag.OPEN:
                said = "".join(text)
                mixed = bool(children and said.strip()) and (not types or "string" in types)
                self._broken = self._broken or mixed or (tag is Tag.CLOSE and own != key)
                self.whole = self.whole and tag is Tag.CLOSE
                return self._value(schema, types, said, children)
            inner = found.match["key"]
            child = yield from self._element(inner, member(schema, inner, self._root), depth + 1)
            if child is None:
                return None
            children.append((inner, child))

    def _value(
        self,
        schema: Mapping[str, Any],
        types: frozenset[str],
        text: str,
        children: list[tuple[str, str]],
    ) -> str:
        if not children:
            return self._leaf(schema, types, text)
        if "array" in types - {"object"} or (
            "properties" not in schema and all(key == "item" for key, _ in children)
        ):
            return f"[{', '.join(value for _, value in children)}]"
        members: dict[str, list[str]] = {"$text": [quoted(text)]} if text.strip() else {}
        for key, value in children:
            members.setdefault(key, []).append(value)
        written = (
            f"{quoted(k)}: {v[0] if len(v) == 1 else '[' + ', '.join(v) + ']'}"
            for k, v in members.items()
        )
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
