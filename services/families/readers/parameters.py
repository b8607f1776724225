"""Reads calls with one tag per argument: `<function=NAME> <parameter=KEY> value </parameter> …
</function>`.

A value is text up to its closing tag. The tag counts only if the grammar continues after it, and
outside of calls that the value shows, so a value may contain any tag's text. A value of another
type than string may lack its closer: it ends at a tag that opens a missing parameter, if it is one
of its type. In a string that tag is text, and the call completes only if the parameter follows.
Strings stream; the type of any other value is decided at its end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from re import Match, compile, escape
from typing import Any, Final

from services.families.grammar.markup import Call
from services.families.grammar.scanner import Reader, Trigger, quoted
from services.families.grammar.shapes import END, MarkerMatch, Markers, Shape
from services.families.grammar.turn import CallOpener, TurnState
from services.families.readers.bare_text import (
    HeldSink,
    Shown,
    Sink,
    StringSink,
    Tag,
    coerced,
    copy_text,
    json_or_string,
    json_string_or_string,
)
from services.families.readers.values import JSON, drop
from services.families.tool_types import NULLABLE_STRING, STRING

_RAW: Final = frozenset({"string", "true"})
_CDATA: Final = ("<![CDATA[", "]]>")


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The grammar of a call with one tag per argument, after its opening tag.

    `opens` are the parameters' opening tags (holes: `key`, and `bool` or `word` for a stated type),
    `closes` their closing tags; `ends` close the call, `beyond` are heads of markers after it;
    `openers` open a call, which a value may show. `frame`: the template puts a line break on each
    side of a value.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    ends: tuple[str, ...]
    beyond: tuple[str, ...] = ()
    openers: tuple[str, ...] = ()
    frame: bool = False
    json: tuple[str, ...] = ()
    """Markers before arguments that are one JSON object instead; `{` for an object without a
    marker."""
    unwrap: tuple[str, ...] = ()
    """A single parameter with one of these names holds all arguments, unless the schema has the
    name."""
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
        return tuple(
            dict.fromkeys(
                Shape(t).head for t in (*self.opens, *self.ends, *self.beyond, *self.json)
            )
        )

    def call(self, opener: str, *, line_start: bool = False, marker: str | None = None) -> Call:
        """A call that begins with the shape `opener`, with one of `follows` after it."""
        return Call(Shape(opener, self.follows, line_start=line_start, marker=marker), self)

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[str | None]:
        """Reads the call."""
        name = turn.tools.named(
            self.unescape(opener.name or ""), self.rename, unknown=self.rename_unknown
        )
        turn.open_call(name)
        arguments = _Arguments(self, turn, name)
        complete = yield from arguments.read(opener)
        turn.blocks.end_call(complete, self.torn, whole=arguments.whole)
        return None

    @cached_property
    def stated(self) -> bool:
        """Whether the model states types. A value without type and schema is JSON if it parses as
        such."""
        return any("{bool}" in opener for opener in self.opens)

    @cached_property
    def before(self) -> Markers[Tag]:
        """Tags before the first value."""
        return self._tags(self.json)

    @cached_property
    def between(self) -> Markers[Tag]:
        """Tags after a value."""
        return self._tags()

    def _tags(self, json: tuple[str, ...] = ()) -> Markers[Tag]:
        texts = {Tag.OPEN: self.opens, Tag.END: self.ends, Tag.JSON: json, Tag.BEYOND: self.beyond}
        texts[Tag.BROKEN] = self._heads
        return Markers([(Shape(text), tag) for tag, group in texts.items() for text in group])

    @property
    def _heads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(Shape(opener).head for opener in self.opens))

    @cached_property
    def inside(self) -> Markers[Tag]:
        """Tags that a value may contain, or that end it."""
        after = [b for b in self.beyond if not any(opener.startswith(b) for opener in self.openers)]
        opens = dict.fromkeys(
            opener.partition("{key}")[0].removesuffix("{q}") for opener in self.opens
        )
        heads = (*(Shape(text).head for text in (*self.opens, *self.ends)), "{")
        next_calls = [opener for opener in self.openers if opener.startswith(self.beyond)]
        return Markers(
            [
                *(
                    (Shape(c + "{ws}" + then), Tag.CLOSE)
                    for c in self.closes
                    for then in (*opens, *self.ends, *after)
                ),
                *(
                    (Shape(c + "{ws}" + opener, then=heads), Tag.CLOSE)
                    for c in self.closes
                    for opener in next_calls
                ),
                *((Shape(c, then=(END,)), Tag.CLOSE) for c in self.closes),
                *((Shape(c), Tag.CLOSED) for c in self.closes),
                *((Shape(opener, then=heads), Tag.CALL) for opener in self.openers),
                *((Shape(opener), Tag.OPEN) for opener in self.opens),
                *(
                    (Shape(e + then, then=(END,)), Tag.LAST)
                    for e in self.ends
                    for then in ("", *("{ws}" + b for b in after))
                ),
                *((Shape(e), Tag.END) for e in self.ends),
            ]
        )

    @cached_property
    def closers(self) -> tuple[Shape, ...]:
        """`closes` as shapes."""
        return tuple(map(Shape, self.closes))

    @cached_property
    def torn(self) -> Trigger:
        """Finds a parameter after another one in text, or the end of a call at the end of text."""
        closes, ends = (
            "|".join(Shape(text).pattern for text in texts) for texts in (self.closes, self.ends)
        )
        opens = "|".join(map(escape, self._heads))
        opened = compile(rf"(?:{closes})\s*(?:{opens})").search
        # What may follow is passed as a whole, for all ends in it: a search from each of them takes
        # quadratic time.
        ended = compile(rf"(?:{closes})\s*(?:{ends})(?:\s|<[^<>]*>|\w)*+(\Z)?").finditer
        return lambda text: (
            opened(text) or next((found for found in ended(text) if found[1] is not None), None)
        )

    @cached_property
    def trigger(self) -> Trigger:
        """Finds text in a value that must pass the reader."""
        first = "".join(
            sorted({escape(t[0]) for t in (*self.opens, *self.closes, *self.ends, *self.openers)})
        )
        return compile(rf"[{first}]|\n\Z" if self.frame else rf"[{first}]").search


class _Arguments:
    def __init__(self, grammar: Parameters, turn: TurnState, name: str) -> None:
        self.grammar, self.turn, self.name = grammar, turn, name
        self.parameters: Mapping[str, Any] = turn.tools.parameters(name)
        self.seen: set[str] = set()
        self.whole = True
        """The call's own closer ended it, and all of its values have theirs."""
        self._doubts: set[str] = set()
        """Parameters that have a tag in the text of a value."""
        self._end = "{}"
        self._cut = self._broken = False
        self._opened = 0
        """Opening tags that are text in a value, and have no closing tag there."""
        self._ambiguous = False
        """A value has the closing tag to one of them, so that it may be a piece of the value
        before."""

    def read(self, opener: CallOpener) -> Reader[bool]:
        """Reads to the end of the call; returns whether it is complete. It is not if a parameter
        stands twice or lacks its name, or if the next call opens before any argument or closer. The
        rest of a call that cannot complete is passed over, and so is a call in the value of a
        parameter with a tag that cannot be read."""
        found = yield from self._next()
        if found is not None and found.meaning is Tag.JSON:
            return (yield from self._json(found.match))
        while found is not None and found.meaning in (Tag.OPEN, Tag.BROKEN):
            if found.meaning is Tag.BROKEN:
                self._broken = True
                found = yield from self._after(
                    (yield from self._value(found.match, StringSink(drop)))
                )
            else:
                found = yield from self._parameter(found.match)
        self.whole = (
            self.whole and not self._broken and found is not None and found.meaning is Tag.END
        )
        if (
            found is not None
            and found.meaning is Tag.BEYOND
            and not self.seen
            and found.match[0] in opener.text
        ):
            return False
        if found is None and not ((self.seen or self.grammar.stop_closes) and self._settled):
            return False
        if self._broken or self._ambiguous or not self._doubts <= self.seen:
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
        if (yield from scanner.peek()) != "{" or not (
            yield from JSON.copy(scanner, self.turn.blocks.write, live=True)
        ):
            yield from self._next()
            return False
        self.seen.add("")
        return (yield from self._next()) is not None or self._settled

    def _next(self) -> Reader[MarkerMatch[Tag] | None]:
        """Passes the next tag and any text before it; a tag after the end of the call is not
        passed."""
        grammar, scanner = self.grammar, self.turn.scanner
        found = yield from scanner.seek(
            grammar.between if self.seen or self._broken else grammar.before
        )
        if found is not None and found.meaning is not Tag.BEYOND:
            scanner.position = found.match.end()
        return found

    def _parameter(self, tag: Match[str]) -> Reader[MarkerMatch[Tag] | None]:
        """Reads a value; returns the tag after it, None at the end of the input."""
        grammar = self.grammar
        key = grammar.unescape(tag["key"]).strip()
        if key in grammar.unwrap and not self.seen and key not in self.parameters:
            return (yield from self._wrapped(tag, key))
        self._begin(key)
        sink = self._sink(key, tag.groupdict())
        found = yield from self._value(tag, sink)
        if found is not None:
            sink.end()
        return (yield from self._after(found))

    def _after(self, found: MarkerMatch[Tag] | None) -> Reader[MarkerMatch[Tag] | None]:
        self._cut = found is None
        return (
            (yield from self._next()) if found is not None and found.meaning is Tag.CLOSE else found
        )

    def _begin(self, key: str) -> None:
        self._broken = self._broken or not key or key in self.seen
        self._write(("{" if not self.seen else ", ") + quoted(key) + ": ")
        self.seen.add(key)
        self._end = "}"

    def _write(self, text: str) -> None:
        if not self._broken:
            self.turn.blocks.write(text)

    def _wrapped(self, tag: Match[str], key: str) -> Reader[MarkerMatch[Tag] | None]:
        """Reads a parameter that may hold all arguments."""
        written: list[str] = []
        sink = HeldSink(written.append, json_or_string)
        ended = yield from self._value(tag, sink)
        if ended is not None:
            sink.end()
        found = yield from self._after(ended)
        value = "".join(written)
        if value[:1] == "{" and (found is None or found.meaning is not Tag.OPEN):
            self.seen.add(key)
            self._end = value
        else:
            self._begin(key)
            self._write(value)
        return found

    def _sink(self, key: str, tag: Mapping[str, str]) -> Sink:
        types = self.turn.tools.types(self.name, key)
        stated = tag.get("bool") or tag.get("word")
        declared = key in self.parameters
        if stated is None and not declared and self.grammar.stated:
            return HeldSink(self._write, json_or_string)
        if stated in _RAW or (stated is None and types == STRING):
            return StringSink(self._write)
        if stated is not None:
            as_string = declared and types == STRING
            return HeldSink(
                self._write, json_string_or_string if as_string else json_or_string, typed=True
            )
        if types == NULLABLE_STRING:
            return StringSink(self._write, nullable=True)
        return HeldSink(self._write, partial(coerced, types=types), typed="string" not in types)

    def _value(self, tag: Match[str], sink: Sink) -> Reader[MarkerMatch[Tag] | None]:
        """Writes the value after `tag`, and passes the tag that ends it; None at the end of the
        input."""
        grammar, scanner = self.grammar, self.turn.scanner
        shown, opened, cdata = Shown(), self._opened, tag[0].endswith(_CDATA[0])

        def ends(found: MarkerMatch[Tag], framed: bool) -> bool:
            if shown.takes(found.meaning):
                return False
            match found.meaning:
                case Tag.LAST:
                    return not shown.seen
                case Tag.CLOSE:
                    return found.match[0].startswith(_CDATA[1]) == cdata
                case Tag.CLOSED if self._opened > opened:
                    self._opened -= 1
                case Tag.CLOSED if opened:
                    self._ambiguous = True
                case Tag.OPEN:
                    return self._names(found.match["key"], sink, framed)
            return False

        trigger = None if self._broken else grammar.trigger
        found = yield from copy_text(
            scanner, grammar.inside, ends, sink, trigger, frame=grammar.frame
        )
        if found is None:
            return None
        self.whole = self.whole and found.meaning is Tag.CLOSE
        if found.meaning is Tag.LAST:
            yield from scanner.match(*map(Shape, grammar.ends))
            return found if scanner.stopped else None  # cut text might have continued with anything
        if found.meaning is Tag.OPEN:
            scanner.position = found.match.end()
        else:
            yield from scanner.match(*grammar.closers)
        return found

    def _names(self, tag_key: str, sink: Sink, framed: bool) -> bool:
        """Whether a tag that opens a parameter ends a value: the parameter is missing, and the
        value is one without that tag. Otherwise the tag is text."""
        self._opened += 1
        key = self.grammar.unescape(tag_key).strip()
        if key in self.seen | self._doubts or (self.parameters and key not in self.parameters):
            return False
        if isinstance(sink, HeldSink) and sink.whole:
            return True
        if framed:
            self._doubts.add(key)
        return False


@dataclass(frozen=True)
class BareCall:
    """A call that is only a name: `whole` if it has no arguments; one that broke off after the name
    never completes.

    `ends_turn`: the end of the turn may be all that closes it.
    """

    whole: bool
    ends_turn: bool = False

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[str | None]:
        """Writes the block; reads nothing."""
        scanner = turn.scanner
        cut = (
            self.ends_turn and scanner.final and not scanner.stopped and not scanner.rest().strip()
        )
        turn.open_call(turn.tools.named(opener.name or ""), opener.call_id)
        if self.whole and not cut:
            turn.blocks.write("{}")
        turn.blocks.close(self.whole and not cut)
        return None
        yield
