"""Calls whose arguments are tags, one by one: `<function=NAME> <parameter=KEY> value </parameter> … </function>`.

A value is text up to its closing tag. The tag counts only if the grammar goes on after it, so that a value may hold the
tag's own text; a tag that opens a parameter which is still due ends a value that was left open. String values stream as
they come; of the others the type is decided when they end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from re import Match, compile, escape
from typing import Any, Final

from services.parser.coercion import NULLABLE_STRING, STRING
from services.parser.readers.sinks import JsonSink, NullableSink, Sink, StringSink, TypedSink
from services.parser.readers.values import JSON
from services.parser.shapes import END, MORE, Found, Markers, Shape
from services.parser.tape import Reading, Trigger, quoted
from services.parser.turn import Opener, Turn

_RAW: Final = frozenset({"string", "true"})


class Tag(Enum):
    """What stands in or between values."""

    OPEN = "opens a parameter"
    CLOSE = "closes it"
    END = "closes the call"
    JSON = "holds all arguments as JSON"
    BEYOND = "belongs to what comes after the call"


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The grammar of such a call, from behind its opening tag on.

    `opens` are the parameters' opening tags (holes: `key`, and `bool` or `word` for a type that the model states),
    `closes` the closing one, `ends` close the call, `beyond` are heads of what may follow it. `frame` is the line break
    that the template puts around values.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    ends: tuple[str, ...]
    beyond: tuple[str, ...] = ()
    frame: bool = False
    json: tuple[str, ...] = ()
    """What opens arguments that are given as one JSON object instead; its brace if nothing does."""
    unwrap: tuple[str, ...] = ()
    """A sole parameter of this name that no schema knows holds all arguments."""
    unescape: Callable[[str], str] = str
    """Undoes the escapes in a tag's attributes."""
    stop_closes: bool = False
    """What closes the call is a stop token, which engines keep to themselves."""
    rename: tuple[str, ...] = ()
    """Namespaces that a tool's name may carry."""

    @property
    def follows(self) -> tuple[str, ...]:
        """What must come after the opening tag for it to be one."""
        return tuple(dict.fromkeys(Shape(t).head for t in (*self.opens, *self.ends, *self.beyond, *self.json)))

    def read(self, turn: Turn, opener: Opener) -> Reading[str | None]:
        """Reads the call."""
        name = turn.tools.named(self.unescape(opener.name or ""), self.rename)
        turn.end_prose()
        turn.blocks.open("tool_use", name)
        whole = yield from _Arguments(self, turn, name).read()
        turn.blocks.close(whole)
        return None

    @cached_property
    def stated(self) -> bool:
        """The model states types; where it does not, and no schema does, a value is JSON if it can be."""
        return any("{bool}" in opener for opener in self.opens)

    @cached_property
    def front(self) -> Markers[Tag]:
        """Tags before the first value."""
        return self._tags(
            (self.opens, Tag.OPEN), (self.ends, Tag.END), (self.json, Tag.JSON), (self.beyond, Tag.BEYOND)
        )

    @cached_property
    def between(self) -> Markers[Tag]:
        """Tags after a value."""
        return self._tags((self.opens, Tag.OPEN), (self.ends, Tag.END), (self.beyond, Tag.BEYOND))

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
        """Finds what may not pass a value unseen."""
        first = "".join(sorted({escape(t[0]) for t in (*self.opens, *self.closes, *self.ends)}))
        return compile(rf"[{first}]|\n\Z" if self.frame else rf"[{first}]").search


class _Arguments:
    """The arguments of one call."""

    __slots__ = ("_cut", "_end", "grammar", "name", "parameters", "seen", "turn")

    def __init__(self, grammar: Parameters, turn: Turn, name: str) -> None:
        self.grammar, self.turn, self.name = grammar, turn, name
        self.parameters: Mapping[str, Any] = turn.tools.parameters(name)
        self.seen: set[str] = set()
        self._end = "{}"
        self._cut = False

    def read(self) -> Reading[bool]:
        """Reads to the call's end; True if it is whole."""
        found = yield from self._next()
        if found is not None and found.means is Tag.JSON:
            return (yield from self._json(found.match))
        while found is not None and found.means is Tag.OPEN:
            found = yield from self._parameter(found.match)
        if found is None and not ((self.seen or self.grammar.stop_closes) and self._settled):
            return False
        self.turn.blocks.say(self._end)
        return True

    @property
    def _settled(self) -> bool:
        """The model stopped here by itself, with nothing left open."""
        tape = self.turn.tape
        return not self._cut and tape.stopped and not tape.rest().strip()

    def _json(self, opener: Match[str]) -> Reading[bool]:
        tape = self.turn.tape
        if opener[0] == "{":
            tape.position = opener.start()
        yield from tape.blanks()
        if (yield from tape.peek()) != "{" or not (yield from JSON.copy(tape, self.turn.blocks.say, live=True)):
            yield from self._next()
            return False
        self.seen.add("")
        return (yield from self._next()) is not None or self._settled

    def _next(self) -> Reading[Found[Tag] | None]:
        """The next tag; what stands before it is noise. What lies beyond the call stays where it is."""
        grammar, tape = self.grammar, self.turn.tape
        found = yield from tape.seek(grammar.between if self.seen else grammar.front)
        if found is not None and found.means is not Tag.BEYOND:
            tape.position = found.match.end()
        return found

    def _parameter(self, tag: Match[str]) -> Reading[Found[Tag] | None]:
        """Reads a value and what follows; returns the next tag, None at the end of the input."""
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

    def _after(self, found: Found[Tag] | None) -> Reading[Found[Tag] | None]:
        self._cut = found is None
        return (yield from self._next()) if found is not None and found.means is Tag.CLOSE else found

    def _begin(self, key: str) -> None:
        self.turn.blocks.say(("{" if not self.seen else ", ") + quoted(key) + ": ")
        self.seen.add(key)
        self._end = "}"

    def _wrapped(self, key: str) -> Reading[Found[Tag] | None]:
        """A parameter that may turn out to be all arguments."""
        said: list[str] = []
        sink = JsonSink(said.append)
        ended = yield from self._value(sink)
        if ended is not None:
            sink.end()
        found = yield from self._after(ended)
        value = "".join(said)
        if value[:1] == "{" and (found is None or found.means is not Tag.OPEN):
            self.seen.add(key)
            self._end = value
        else:
            self._begin(key)
            self.turn.blocks.say(value)
        return found

    def _sink(self, key: str, tag: Mapping[str, str]) -> Sink:
        say = self.turn.blocks.say
        types = self.turn.tools.types(self.name, key)
        stated = tag.get("bool") or tag.get("word")
        known = key in self.parameters
        if stated is None and not known and self.grammar.stated:
            return JsonSink(say)
        if stated in _RAW or (stated is None and types == STRING):
            return StringSink(say)
        if stated is not None:
            return JsonSink(say, strings=known and types == STRING)
        return NullableSink(say) if types == NULLABLE_STRING else TypedSink(say, types)

    def _value(self, sink: Sink) -> Reading[Found[Tag] | None]:
        """Writes the value, without its frame, up to the tag that ends it."""
        grammar, tape, markers = self.grammar, self.turn.tape, self.grammar.inside
        held, first = "", grammar.frame
        while True:
            text, look = tape.text, tape.position
            while True:
                at = markers.find(text, look, tape.final)
                found = markers.at(text, at, tape.final) if at >= 0 else None
                if at < 0 or found is MORE or (isinstance(found, Found) and self._ends(found)):
                    break
                look = at + 1
            piece = text[tape.position : at if at >= 0 else len(text)]
            tape.position += len(piece)
            if piece and first:
                first = False
                piece = piece.removeprefix("\n")
            if piece:
                piece = held + piece
                held = "\n" if grammar.frame and piece[-1] == "\n" else ""
                sink.write(piece.removesuffix(held))
            if isinstance(found, Found):
                tape.position = found.match.end()
                # cut off here, the text might have gone on with anything
                return found if found.means is not Tag.END or not tape.final or tape.stopped else None
            if tape.final:
                return None
            if at < 0 and not held and not first and sink.live:
                tape.trigger, tape.escape = grammar.trigger, True
            yield
            tape.trigger = None

    def _ends(self, found: Found[Tag]) -> bool:
        """A tag that opens a parameter ends a value only if that parameter exists and was not given yet."""
        if found.means is not Tag.OPEN:
            return True
        key = found.match["key"].strip()
        return key not in self.seen and (key in self.parameters or not self.parameters)
