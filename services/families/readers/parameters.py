"""Reads calls with one tag per argument: `<function=NAME> <parameter=KEY> value </parameter> … </function>`.

A value is text up to its closing tag. The tag counts only if the grammar continues after it, so a value may contain the
tag's text. A value without a closer ends at a tag that opens a parameter which is still missing. Strings stream; the
type of any other value is decided at its end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from re import Match, compile, escape
from typing import Any, Final

from services.families.grammar.markup import Call
from services.families.grammar.scanner import Reader, Trigger, quoted
from services.families.grammar.shapes import END, MarkerMatch, Markers, Shape
from services.families.grammar.turn import CallOpener, TurnState
from services.families.readers.bare_text import (
    HeldSink,
    Sink,
    StringSink,
    coerced,
    copy_text,
    json_or_string,
    json_string_or_string,
)
from services.families.readers.values import JSON
from services.families.tool_types import NULLABLE_STRING, STRING

_RAW: Final = frozenset({"string", "true"})


class Tag(Enum):
    """A tag in or between values."""

    OPEN = "opens a parameter"
    CLOSE = "closes it"
    END = "closes the call"
    JSON = "holds all arguments as JSON"
    BEYOND = "belongs to what comes after the call"
    BROKEN = "opens a parameter, but its key cannot be read"


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The grammar of a call with one tag per argument, after its opening tag.

    `opens` are the parameters' opening tags (holes: `key`, and `bool` or `word` for a stated type), `closes` their
    closing tags; `ends` close the call, `beyond` are heads of markers after it. `frame`: the template puts a line
    break on each side of a value.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    ends: tuple[str, ...]
    beyond: tuple[str, ...] = ()
    frame: bool = False
    json: tuple[str, ...] = ()
    """Markers before arguments that are one JSON object instead; `{` for an object without a marker."""
    unwrap: tuple[str, ...] = ()
    """A single parameter with one of these names holds all arguments, unless the schema has the name."""
    unescape: Callable[[str], str] = str
    """Undoes the escapes in a tag's attributes."""
    stop_closes: bool = False
    """The marker that closes a call is a stop token, which engines do not return."""
    rename: tuple[str, ...] = ()
    """Namespaces that may precede a tool's name."""
    rename_unknown: bool = True
    """The namespaces are also removed from the names of tools that the request lacks."""

    @property
    def follows(self) -> tuple[str, ...]:
        """The texts that may follow the opening tag; it counts only with one of them."""
        return tuple(dict.fromkeys(Shape(t).head for t in (*self.opens, *self.ends, *self.beyond, *self.json)))

    def call(self, opener: str, *, line_start: bool = False, marker: str | None = None) -> Call:
        """A call that begins with the shape `opener`, with one of `follows` after it."""
        return Call(Shape(opener, self.follows, line_start=line_start, marker=marker), self)

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[str | None]:
        """Reads the call."""
        name = turn.tools.named(self.unescape(opener.name or ""), self.rename, unknown=self.rename_unknown)
        turn.open_call(name)
        turn.blocks.close((yield from _Arguments(self, turn, name).read(opener)))
        return None

    @cached_property
    def stated(self) -> bool:
        """Whether the model states types. A value without type and schema is JSON if it parses as such."""
        return any("{bool}" in opener for opener in self.opens)

    @cached_property
    def before(self) -> Markers[Tag]:
        """Tags before the first value."""
        return self._tags(
            (self.opens, Tag.OPEN),
            (self.ends, Tag.END),
            (self.json, Tag.JSON),
            (self.beyond, Tag.BEYOND),
            (self._heads, Tag.BROKEN),
        )

    @cached_property
    def between(self) -> Markers[Tag]:
        """Tags after a value."""
        return self._tags(
            (self.opens, Tag.OPEN), (self.ends, Tag.END), (self.beyond, Tag.BEYOND), (self._heads, Tag.BROKEN)
        )

    @property
    def _heads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(Shape(opener).head for opener in self.opens))

    @staticmethod
    def _tags(*groups: tuple[tuple[str, ...], Tag]) -> Markers[Tag]:
        return Markers([(Shape(text), tag) for texts, tag in groups for text in texts])

    @cached_property
    def inside(self) -> Markers[Tag]:
        """Tags that may end a value."""
        after = (*dict.fromkeys(Shape(t).head for t in (*self.opens, *self.ends, *self.beyond)), END)
        beyond = (*(Shape(b).head for b in self.beyond), END)
        return Markers(
            [
                *((Shape(c, then=after), Tag.CLOSE) for c in self.closes),
                *((Shape(o), Tag.OPEN) for o in self.opens),
                *((Shape(e, then=beyond), Tag.END) for e in self.ends),
            ]
        )

    @cached_property
    def trigger(self) -> Trigger:
        """Finds text in a value that must pass the reader."""
        first = "".join(sorted({escape(t[0]) for t in (*self.opens, *self.closes, *self.ends)}))
        return compile(rf"[{first}]|\n\Z" if self.frame else rf"[{first}]").search


class _Arguments:
    __slots__ = ("_cut", "_end", "grammar", "name", "parameters", "seen", "turn")

    def __init__(self, grammar: Parameters, turn: TurnState, name: str) -> None:
        self.grammar, self.turn, self.name = grammar, turn, name
        self.parameters: Mapping[str, Any] = turn.tools.parameters(name)
        self.seen: set[str] = set()
        self._end = "{}"
        self._cut = False

    def read(self, opener: CallOpener) -> Reader[bool]:
        """Reads to the end of the call; returns whether it is whole. It is not if the next call opens before any
        argument or closer."""
        found = yield from self._next()
        if found is not None and found.meaning is Tag.JSON:
            return (yield from self._json(found.match))
        while found is not None and found.meaning is Tag.OPEN:
            found = yield from self._parameter(found.match)
        if found is not None and found.meaning is Tag.BROKEN:
            while found is not None and found.meaning not in (Tag.END, Tag.BEYOND):
                found = yield from self._next()
            return False
        if found is not None and found.meaning is Tag.BEYOND and not self.seen and found.match[0] in opener.text:
            return False
        if found is None and not ((self.seen or self.grammar.stop_closes) and self._settled):
            return False
        self.turn.blocks.write(self._end)
        return True

    @property
    def _settled(self) -> bool:
        """Whether the model stopped here by itself, with no value open."""
        scanner = self.turn.scanner
        return not self._cut and scanner.stopped and not scanner.rest().strip()

    def _json(self, opener: Match[str]) -> Reader[bool]:
        scanner = self.turn.scanner
        if opener[0] == "{":
            scanner.position = opener.start()
        yield from scanner.blanks()
        if (yield from scanner.peek()) != "{" or not (yield from JSON.copy(scanner, self.turn.blocks.write, live=True)):
            yield from self._next()
            return False
        self.seen.add("")
        return (yield from self._next()) is not None or self._settled

    def _next(self) -> Reader[MarkerMatch[Tag] | None]:
        """Passes the next tag and any text before it; a tag after the end of the call is not passed."""
        grammar, scanner = self.grammar, self.turn.scanner
        found = yield from scanner.seek(grammar.between if self.seen else grammar.before)
        if found is not None and found.meaning is not Tag.BEYOND:
            scanner.position = found.match.end()
        return found

    def _parameter(self, tag: Match[str]) -> Reader[MarkerMatch[Tag] | None]:
        """Reads a value; returns the tag after it, None at the end of the input."""
        grammar = self.grammar
        key = grammar.unescape(tag["key"]).strip()
        if key in grammar.unwrap and not self.seen and key not in self.parameters:
            return (yield from self._wrapped(key))
        self._begin(key)
        sink = self._sink(key, tag.groupdict())
        found = yield from self._value(sink)
        if found is not None:
            sink.end()
        return (yield from self._after(found))

    def _after(self, found: MarkerMatch[Tag] | None) -> Reader[MarkerMatch[Tag] | None]:
        self._cut = found is None
        return (yield from self._next()) if found is not None and found.meaning is Tag.CLOSE else found

    def _begin(self, key: str) -> None:
        self.turn.blocks.write(("{" if not self.seen else ", ") + quoted(key) + ": ")
        self.seen.add(key)
        self._end = "}"

    def _wrapped(self, key: str) -> Reader[MarkerMatch[Tag] | None]:
        """Reads a parameter that may hold all arguments."""
        written: list[str] = []
        sink = HeldSink(written.append, json_or_string)
        ended = yield from self._value(sink)
        if ended is not None:
            sink.end()
        found = yield from self._after(ended)
        value = "".join(written)
        if value[:1] == "{" and (found is None or found.meaning is not Tag.OPEN):
            self.seen.add(key)
            self._end = value
        else:
            self._begin(key)
            self.turn.blocks.write(value)
        return found

    def _sink(self, key: str, tag: Mapping[str, str]) -> Sink:
        write = self.turn.blocks.write
        types = self.turn.tools.types(self.name, key)
        stated = tag.get("bool") or tag.get("word")
        declared = key in self.parameters
        if stated is None and not declared and self.grammar.stated:
            return HeldSink(write, json_or_string)
        if stated in _RAW or (stated is None and types == STRING):
            return StringSink(write)
        if stated is not None:
            return HeldSink(write, json_string_or_string if declared and types == STRING else json_or_string)
        if types == NULLABLE_STRING:
            return StringSink(write, nullable=True)
        return HeldSink(write, partial(coerced, types=types))

    def _value(self, sink: Sink) -> Reader[MarkerMatch[Tag] | None]:
        """Writes the value, and passes the tag that ends it; None at the end of the input."""
        grammar, scanner = self.grammar, self.turn.scanner
        found = yield from copy_text(scanner, grammar.inside, self._ends, sink, grammar.trigger, frame=grammar.frame)
        if found is None:
            return None
        scanner.position = found.match.end()
        # Cut text might have continued with anything.
        return found if found.meaning is not Tag.END or not scanner.final or scanner.stopped else None

    def _ends(self, found: MarkerMatch[Tag]) -> bool:
        """Whether a tag ends the value: an opening tag does so only for a parameter of the tool that is missing."""
        if found.meaning is not Tag.OPEN:
            return True
        key = found.match["key"].strip()
        return key not in self.seen and (key in self.parameters or not self.parameters)


@dataclass(frozen=True)
class BareCall:
    """A call that is only a name: `whole` if it has no arguments; one that broke off after the name never completes.

    `ends_turn`: the end of the turn may be all that closes it.
    """

    whole: bool
    ends_turn: bool = False

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[str | None]:
        """Writes the block; reads nothing."""
        scanner = turn.scanner
        cut = self.ends_turn and scanner.final and not scanner.stopped and not scanner.rest().strip()
        turn.open_call(turn.tools.named(opener.name or ""), opener.call_id)
        if self.whole and not cut:
            turn.blocks.write("{}")
        turn.blocks.close(self.whole and not cut)
        return None
        yield
