"""Reads calls with one tag per argument: `<function=NAME> <parameter=KEY> value </parameter> …
</function>`.

A value is text up to its closing tag, which counts only if the grammar continues after it, and
outside of calls that the value shows. Any other tag of a parameter in a value may be what is left
of a damaged one, so that it is not certain where the value ends, and the call does not complete.
It does if the value shows the parameter with both tags, or only mentions the tag.

A value of another type than string may lack its closer: it ends at the next tag if it is one of its
type. Strings stream; the type of any other value is decided at its end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from re import Match
from typing import Any, Final

from services.families.grammar.call_marker import CallMarker
from services.families.grammar.scanner import Reader
from services.families.grammar.shapes import MarkerMatch, Shape
from services.families.grammar.turn_state import (
    IS_CALL,
    CallOpener,
    CallReading,
    TurnState,
)
from services.families.readers.arguments import ArgumentWriter
from services.families.readers.bare_text import (
    coerced,
    copy_text,
    json_or_string,
    json_string_or_string,
)
from services.families.readers.json_values import JSON, drop
from services.families.readers.parameter_tags import CDATA, ParameterTags
from services.families.readers.value_sinks import (
    BufferedSink,
    FramedSink,
    StringSink,
    UntaggedSink,
    ValueSink,
)
from services.families.readers.value_tags import (
    MENTIONABLE,
    QuotedCalls,
    ShownTags,
    Tag,
    next_tag,
)
from services.families.tool_types import NULLABLE_STRING, STRING

_RAW: Final = frozenset({"string", "true"})
_STARTS: Final = (Tag.VALUE_START, Tag.BARE_VALUE_START, Tag.UNREADABLE_START)


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterTags):
    """The grammar of such a call, which reads it."""

    def call(
        self, opener: str, *, line_start: bool = False, marker: str | None = None
    ) -> CallMarker:
        """A call that begins with the shape `opener`, with one of `follows` after it."""
        return CallMarker(Shape(opener, self.follows, line_start=line_start, marker=marker), self)

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[CallReading]:
        """Reads the call."""
        name = turn.tools.registered_name(
            self.unescape(opener.name or ""), self.rename, unknown=self.rename_unknown
        )
        turn.open_call(name)
        arguments = _Arguments(self, turn, name)
        complete = yield from arguments.read()
        turn.blocks.end_call(complete, self.find_stray_end, all_closed=arguments.all_closed)
        return IS_CALL


class _ValueEnd:
    """Decides which tag ends a value; the others are text in it."""

    def __init__(
        self, grammar: ParameterTags, shown: ShownTags, opening: Match[str], sink: ValueSink
    ) -> None:
        self._grammar = grammar
        self._shown = shown
        self._sink = sink
        self._quoted_calls = QuotedCalls()
        self._in_cdata = opening[0].endswith(CDATA[0])

    def is_at(self, tag: MarkerMatch[Tag], mentioned: bool) -> bool:
        """Whether the value ends at `tag`. Called once for each, in order; `mentioned`: the text
        only mentions it."""
        if self._quoted_calls.add(tag.meaning):
            return False
        mentioned = mentioned or self._in_cdata
        match tag.meaning:
            case Tag.FINAL_CALL_END:
                return not self._quoted_calls.seen
            case Tag.VALUE_END:
                return tag.match[0].startswith(CDATA[1]) == self._in_cdata
            case Tag.VALUE_START if not mentioned:
                return self._is_at_parameter(tag.match["key"])
            case Tag.FOREIGN_START | Tag.STRAY_VALUE_END | Tag.STRAY_PIECE if not mentioned:
                self._shown.add(tag.meaning)
        return False

    @property
    def is_value(self) -> bool:
        """Whether the text so far is a value without its closing tag."""
        return isinstance(self._sink, BufferedSink) and self._sink.is_value

    def _is_at_parameter(self, tag_key: str) -> bool:
        """Whether the value ends at a tag that opens a parameter."""
        key = self._grammar.unescape(tag_key).strip()
        if self._shown.may_begin(key) and self.is_value:
            return True
        self._shown.add(Tag.VALUE_START, key)
        return False


class _Arguments:
    def __init__(self, grammar: ParameterTags, turn: TurnState, name: str) -> None:
        self.grammar = grammar
        self.turn = turn
        self.name = name
        self.parameters: Mapping[str, Any] = turn.tools.parameters(name)
        self._written = ArgumentWriter(turn.blocks)
        self.all_closed = True
        """The call's own closer ended it, and all of its values have theirs."""
        self._shown = ShownTags(self.parameters, self._written.keys)
        self._cut = False
        """The input ended in a value."""

    def read(self) -> Reader[bool]:
        """Reads to the end of the call; returns whether it is complete. It is not if a parameter
        stands twice or lacks its name, if other text stands between two, or if the next call opens
        before any argument or closer. The rest of a call that cannot complete is passed over, and
        so is a call in the value of a parameter with a tag that cannot be read."""
        tag = yield from self._next()
        if tag is not None and tag.meaning is Tag.JSON_START:
            return (yield from self._json(tag.match))
        while tag is not None and tag.meaning in _STARTS:
            tag = yield from self._item(tag)
        closed = tag is not None and tag.meaning is Tag.CALL_END
        self.all_closed = self.all_closed and closed and not self._written.broken
        if not self._ends(tag):
            return False
        if self._written.broken or not self._shown.are_text:
            return False
        self._written.end()
        return True

    def _item(self, tag: MarkerMatch[Tag]) -> Reader[MarkerMatch[Tag] | None]:
        """Reads a parameter, or one with a tag that cannot be read; returns the tag after it."""
        if tag.meaning is Tag.UNREADABLE_START:
            return self._unreadable(tag.match)
        return self._parameter(tag.match, bare=tag.meaning is Tag.BARE_VALUE_START)

    def _unreadable(self, opening: Match[str]) -> Reader[MarkerMatch[Tag] | None]:
        self._written.broken = True
        ended = yield from self._value(opening, StringSink(drop), bare=False)
        return (yield from self._after(ended))

    def _ends(self, tag: MarkerMatch[Tag] | None) -> bool:
        """Whether the call ends with the tag after its arguments, or with the input."""
        if tag is None:
            may_end = self._written.keys or self.grammar.stop_closes
            return bool(may_end) and self._settled
        return bool(self._written.keys) or tag.meaning is Tag.CALL_END

    @property
    def _settled(self) -> bool:
        """Whether the model stopped here by itself, with no value open."""
        return not self._cut and self.turn.scanner.stopped_here

    def _json(self, opener: Match[str]) -> Reader[bool]:
        scanner = self.turn.scanner
        if opener[0] == "{":
            scanner.position = opener.start()
        yield from scanner.blanks()
        is_object = (yield from scanner.peek()) == "{"
        if not is_object or not (yield from JSON.copy(scanner, self.turn.blocks.write, live=True)):
            yield from self._next()
            return False
        self._written.keys.add("")
        yield from scanner.skip(*(Shape("{ws}" + closer) for closer in self.grammar.json_closers))
        is_closed = (yield from self._next()) is not None
        return (is_closed or self._settled) and not self._written.broken

    def _next(self) -> Reader[MarkerMatch[Tag] | None]:
        """Passes the next tag, as `next_tag`."""
        is_first = not self._written.keys and not self._written.broken
        tags = self.grammar.before if is_first else self.grammar.between
        return next_tag(self.turn.scanner, tags, self._written)

    def _parameter(self, opening: Match[str], *, bare: bool) -> Reader[MarkerMatch[Tag] | None]:
        """Reads a value; returns the tag after it, None at the end of the input."""
        grammar = self.grammar
        key = grammar.unescape(opening["key"]).strip()
        if key in grammar.unwrap and not self._written.keys and key not in self.parameters:
            return (yield from self._wrapped(opening, key))
        self._written.begin(key)
        sink = self._sink(key, opening.groupdict())
        tag = yield from self._value(opening, sink, bare=bare)
        if tag is not None:
            sink.end()
            self._written.broken = self._written.broken or sink.is_damaged
        return (yield from self._after(tag))

    def _after(self, tag: MarkerMatch[Tag] | None) -> Reader[MarkerMatch[Tag] | None]:
        self._cut = tag is None
        if tag is None or tag.meaning is not Tag.VALUE_END:
            return tag
        return (yield from self._next())

    def _wrapped(self, opening: Match[str], key: str) -> Reader[MarkerMatch[Tag] | None]:
        """Reads a parameter that may hold all arguments."""
        written: list[str] = []
        sink = BufferedSink(written.append, json_or_string)
        ended = yield from self._value(opening, sink, bare=False)
        if ended is not None:
            sink.end()
        tag = yield from self._after(ended)
        value = "".join(written)
        goes_on = tag is not None and tag.meaning is Tag.VALUE_START
        if value[:1] == "{" and not goes_on:
            self._written.set_all(key, value)
        else:
            self._written.begin(key)
            self._written.write(value)
        return tag

    def _sink(self, key: str, groups: Mapping[str, str]) -> ValueSink:
        types = self.turn.tools.types(self.name, key)
        stated = groups.get("bool") or groups.get("word")
        if stated is None:
            return self._typed_sink(key, types)
        if stated in _RAW:
            return StringSink(self._written.write)
        is_string = key in self.parameters and types == STRING
        convert = json_string_or_string if is_string else json_or_string
        return BufferedSink(self._written.write, convert, typed=True)

    def _typed_sink(self, key: str, types: frozenset[str]) -> ValueSink:
        """The sink of a value without a stated type."""
        write = self._written.write
        if self.grammar.stated and key not in self.parameters:
            return BufferedSink(write, json_or_string)
        if types == STRING:
            return StringSink(write)
        if types == NULLABLE_STRING:
            return StringSink(write, nullable=True)
        return BufferedSink(write, partial(coerced, types=types), typed="string" not in types)

    def _value(
        self, opening: Match[str], sink: ValueSink, *, bare: bool
    ) -> Reader[MarkerMatch[Tag] | None]:
        """Writes the value after its `opening` tag, and passes the tag that ends it; None at the
        end of the input. `bare`: the tag before the value is missing."""
        grammar = self.grammar
        scanner = self.turn.scanner
        end = _ValueEnd(grammar, self._shown, opening, sink)
        stretch = None if self._written.broken else grammar.stretch
        value = UntaggedSink(sink, grammar.edges) if bare else sink
        tag = yield from copy_text(
            scanner,
            grammar.inside,
            end.is_at,
            FramedSink(value) if grammar.frame else value,
            stretch,
            mentionable=MENTIONABLE,
        )
        if isinstance(value, UntaggedSink) and not value.certain:
            self._written.broken = True
        if tag is None:
            return None
        self._shown.end_value()
        self.all_closed = self.all_closed and tag.meaning is Tag.VALUE_END
        if tag.meaning is Tag.FINAL_CALL_END:
            self._written.broken = self._written.broken or not end.is_value
            yield from scanner.match(*map(Shape, grammar.call_closers))
            return tag if scanner.stopped else None  # cut text might have continued with anything
        if tag.meaning is Tag.VALUE_START:
            scanner.position = tag.match.end()
        else:
            yield from scanner.match(*grammar.closer_shapes)
        return tag
