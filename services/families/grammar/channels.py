"""The grammar of families that write messages with headers, and its reader.

    <|start|>assistant<|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant to=functions.NAME …<|message|>{…}<|call|>

The prompt contains the start of the first header. All text between two messages is a header:
whatever it looks like, the parts that are there decide the kind of the message. Text that no header
follows is text.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from re import Pattern, compile, escape
from typing import Final, TypeAlias

from services.families.grammar.call_marker import CallMarker, CallReader
from services.families.grammar.calls_in_code import read_in_code
from services.families.grammar.prose import read_prose
from services.families.grammar.scanner import Reader, Scanner
from services.families.grammar.shapes import MORE, MarkerMatch, Markers, Shape, with_meaning
from services.families.grammar.turn_state import IS_CALL, CallOpener, CallReading, TurnState

_MAX_HEADER: Final = 128


@dataclass(frozen=True)
class ToolChannel:
    """A message that is a call of `name`."""

    name: str | None
    body: CallReader


class MessageKind(Enum):
    """The kind of a message that is not a call."""

    REASONING = "reasoning"
    TEXT = "text"
    NOTHING = "not for the client"


Kind: TypeAlias = MessageKind | ToolChannel


class _Edge(Enum):
    BODY = "the message begins after it"
    END = "the message ends"
    HEADER = "a header begins with it"
    JSON = "the message begins with it, without a marker"
    TOKEN = "belongs to a header that cannot be read"


@dataclass(frozen=True, kw_only=True)
class Channels:
    """The grammar: `starts` and `again` begin headers, with or without start, `bodies` end them,
    `ends` end messages.

    `route` decides the kind of a message by its header, up to and with the marker of the body, if
    that is there. `parts` are the markers and words that headers are made of. `interrupts` begin a
    header in reasoning that was left open; in text they are text.
    """

    route: Callable[[str], Kind]
    starts: tuple[Shape, ...]
    bodies: tuple[Shape, ...]
    ends: tuple[str, ...]
    parts: tuple[str, ...]
    again: tuple[Shape, ...] = ()
    interrupts: tuple[Shape, ...] = ()
    call_tokens: tuple[str, ...] = ()
    """Control tokens of calls: in prose they are dropped, except in code and where the text
    mentions them."""

    @property
    def block_tokens(self) -> set[str]:
        """The markers that begin and end messages."""
        starts = (*self.starts, *self.again, *self.interrupts)
        return {*self.ends, *map(_token, starts)}

    def __call__(self, turn: TurnState) -> Reader[None]:
        """Reads a turn."""
        kind: Kind | None = MessageKind.REASONING
        if not turn.reasoning:
            kind, _ = yield from self._header(turn, first=True)
        while kind is not None:
            edge = yield from self._message(turn, kind)
            kind = yield from self._next_kind(turn, kind, edge)
        turn.scanner.position = len(turn.scanner.text)

    def _next_kind(self, turn: TurnState, kind: Kind, edge: _Edge | None) -> Reader[Kind | None]:
        """Reads the header after a message that ended at `edge`; returns the kind of what follows,
        None at the end of the input."""
        if edge is None:
            return None
        is_in_code = turn.code.fenced or turn.code.last == "`"
        if turn.calls and edge is _Edge.HEADER and is_in_code:
            return (yield from self._header_in_code(turn, kind))
        turn.end_prose()
        turn.reasoning = False
        turn.after_thought = len(turn.scanner.rest()) if edge is _Edge.END else None
        following, _ = yield from self._header(turn)
        return following

    def _header_in_code(self, turn: TurnState, before: Kind) -> Reader[Kind | None]:
        """Reads a header that stands in code, and calls after it. Returns the kind of what follows:
        `before`, that of the message with the code, if it only shows the calls; None if the input
        ends in the header."""
        fenced = turn.code.fenced
        kind, header = yield from self._header(turn)
        if not isinstance(kind, ToolChannel):
            turn.end_prose()
            return kind
        calls = self._calls_in_code(turn, kind, fenced)
        reading = yield from read_in_code(turn, calls, turn.scanner.position, header)
        return MessageKind.TEXT if reading.is_call else before

    def _header(self, turn: TurnState, first: bool = False) -> Reader[tuple[Kind | None, str]]:
        """Reads a header; returns the kind of its message, None if the input ends in it, and the
        passed text."""
        scanner = turn.scanner
        turn.in_call = True
        if first and not (yield from scanner.follows(*self._openings)):
            return self._without_header(scanner), ""
        text, limit = yield from self._header_text(scanner)
        if limit is not None and limit.meaning is _Edge.BODY:
            header = text + limit.match[0]
            turn.blocks.note_passed(text.partition(_token(self.starts[0]))[0])
            scanner.position += len(header)
            yield from scanner.skip(Shape(limit.match[0]))
            return self.route(header), header
        return self._bare_header(turn, text, first, None if limit is None else limit.meaning)

    def _without_header(self, scanner: Scanner) -> Kind | None:
        """The kind of the first message, which begins without a header; None if the input was cut
        off in one."""
        cuts = [shape.cut(scanner.text, scanner.position) for shape in self._openings]
        if scanner.final and not scanner.stopped and any(cuts):
            return None
        return MessageKind.TEXT

    def _header_text(self, scanner: Scanner) -> Reader[tuple[str, MarkerMatch[_Edge] | None]]:
        """The text up to what ends a header, and that marker; None if there is none. Passes over
        nothing."""
        while True:
            before = self._before.match(scanner.text, scanner.position)
            assert before is not None
            limit = self._limits.at(scanner.text, before.end(), scanner.final)
            is_known = limit is not None or len(scanner.text) >= before.end() + self._reach
            if scanner.final or (is_known and limit is not MORE):
                return before[0], limit if isinstance(limit, MarkerMatch) else None
            yield None

    def _bare_header(
        self, turn: TurnState, text: str, first: bool, edge: _Edge | None
    ) -> tuple[Kind | None, str]:
        """Passes over a header without a marker for its body. `edge`: what ends it; None if nothing
        shows that it is whole. A call begins only with its JSON. Returns the same as `_header`."""
        scanner = turn.scanner
        parts = self._parts.match(text)
        assert parts is not None
        kind: Kind = MessageKind.TEXT
        if first or parts[0]:
            if scanner.final and not scanner.stopped and edge is None:
                return None, text
            kind = self.route(text)
        if edge is None or not isinstance(kind, ToolChannel):
            text = parts[0]
        scanner.position += len(text)
        if isinstance(kind, ToolChannel) and turn.calls and edge is not _Edge.JSON:
            turn.open_call(turn.tools.registered_name(kind.name or "", ("functions.",)))
            turn.blocks.close(False)
            kind = MessageKind.TEXT
        return kind, text

    def _calls_in_code(self, turn: TurnState, kind: Kind | None, fenced: bool) -> Reader[bool]:
        """Reads calls; returns whether they are real: the code does not go on after them."""
        scanner = turn.scanner
        ends = tuple(Shape("{ws}" + end) for end in self.ends)
        while isinstance(kind, ToolChannel):
            yield from kind.body.read(turn, self._opener(kind))
            yield from scanner.skip(*ends)
            if not fenced:
                return (yield from scanner.peek()) != "`"
            yield from scanner.blanks()
            if not (yield from scanner.peek()):
                return True
            kind, _ = yield from self._header(turn)
        return False

    def _message(self, turn: TurnState, kind: Kind) -> Reader[_Edge | None]:
        """Reads a message; returns the kind of marker that ended it, None at the end of the
        input."""
        scanner = turn.scanner
        turn.reasoning = kind is MessageKind.REASONING
        turn.in_call = isinstance(kind, ToolChannel) and turn.calls
        if isinstance(kind, ToolChannel) and turn.calls:
            reading = yield from kind.body.read(turn, self._opener(kind))
            if reading.text:
                turn.blocks.broken_calls += 1
                turn.add_prose(reading.text)
            return None if scanner.final else _Edge.END  # text at the end belongs to the call
        if kind is MessageKind.NOTHING:
            marker = yield from scanner.seek(self._within[False])
        else:
            marker = yield from self._prose(turn)
        if marker is None:
            return None
        scanner.position = marker.match.start()
        if marker.meaning is _Edge.END:
            turn.blocks.note_passed(marker.match[0])
            scanner.position = marker.match.end()
        return marker.meaning

    def _prose(self, turn: TurnState) -> Reader[MarkerMatch[_Edge] | None]:
        """Reads prose up to the marker that ends it, which is passed over."""
        within = self._within[turn.reasoning]
        while True:
            marker = yield from read_prose(turn, within, within)
            if marker is None or marker.meaning is not _Edge.TOKEN:
                return marker
            ahead = yield from turn.scanner.peek()
            is_word = not ahead.isalnum() and ahead not in ("{", "<")
            turn.damaged = turn.damaged or not (is_word or turn.in_code)
            turn.pass_token(marker.match[0])

    def _opener(self, kind: ToolChannel) -> CallOpener:
        return CallOpener(head=_token(self.starts[0]), name=kind.name)

    @cached_property
    def _openings(self) -> tuple[Shape, ...]:
        """The beginnings of a header that follows a prompt."""
        follow = self.starts[0].then or tuple(self._body_heads)
        beginnings = (*self.parts, *(part for part in follow if part == "to="))
        bodies = (Shape("{ws}" + body.text, body.then) for body in self.bodies)
        return (
            *(Shape("{ws}" + part) for part in beginnings),
            *bodies,
            Shape("{ws}{name}", then=follow),
        )

    @cached_property
    def _parts(self) -> Pattern[str]:
        """Matches a header that has no marker for its body, up to its last part."""
        marker = "|".join(escape(part) for part in self.parts if part[0] == "<")
        word = "|".join(escape(part) for part in self.parts if part[0] != "<") or "(?!)"
        recipient = r"\s*to=[^\s<>|{]+"
        return compile(rf"(?s:.*(?:{marker})(?:{recipient}|\s*(?:{word})\b)*|{recipient})?")

    @cached_property
    def _before(self) -> Pattern[str]:
        """Matches the text before one of `_limits`."""
        limits = "|".join(map(escape, (*self._body_heads, *self.ends, "{")))
        words = rf"(?s:(?!{limits}|to=).){{0,{_MAX_HEADER}}}+"
        return compile(rf"{words}(?:to=[^\s<>|{{]{{0,256}}+{words})?")

    @cached_property
    def _limits(self) -> Markers[_Edge]:
        bodies = [(body, _Edge.BODY) for body in self.bodies]
        ends = with_meaning(_Edge.END, self.ends)
        return Markers([*bodies, *ends, (Shape("{"), _Edge.JSON)])

    @cached_property
    def _reach(self) -> int:
        """The characters after a header's longest text that may show where it ends."""
        return max(map(len, (*self._body_heads, *self.ends)))

    @cached_property
    def _within(self) -> tuple[Markers[_Edge], Markers[_Edge]]:
        """The markers that end text, and those that end reasoning."""
        edges = with_meaning(_Edge.END, self.ends)
        edges += [(shape, _Edge.HEADER) for shape in (*self.starts, *self.again)]
        interrupts = [(shape, _Edge.HEADER) for shape in self.interrupts]
        strays = with_meaning(_Edge.TOKEN, self.call_tokens)
        return Markers([*edges, *strays]), Markers([*edges, *interrupts, *strays])

    @property
    def _body_heads(self) -> list[str]:
        return [body.head for body in self.bodies]


def _token(shape: Shape) -> str:
    return shape.head[: shape.head.find(">") + 1]


@dataclass(frozen=True)
class Section:
    """The body of a message with several calls, each after its own marker, up to one of `ends`,
    which is not passed.

    Text between the calls is dropped. A message to a tool of the request without any call is a call
    that never completes.
    """

    calls: tuple[CallMarker, ...]
    ends: tuple[Shape, ...]
    rename: tuple[str, ...] = ()
    """Namespaces that may precede a tool's name in the header."""

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[CallReading]:
        """Reads the calls."""
        name = turn.tools.registered_name(opener.name or "", self.rename)
        while True:
            turn.scanner.start_recording()
            marker = yield from turn.scanner.seek(self._markers)
            turn.blocks.note_passed(turn.scanner.stop_recording())
            if marker is None or marker.meaning is None:
                if name in turn.tools:
                    turn.open_call(name)
                    turn.blocks.close(False)
                return IS_CALL
            name = ""
            turn.scanner.position = marker.match.end()
            yield from marker.meaning.read(turn, marker.match)

    @cached_property
    def _markers(self) -> Markers[CallMarker | None]:
        calls = [(call.shape, call) for call in self.calls]
        ends: list[tuple[Shape, CallMarker | None]] = [(shape, None) for shape in self.ends]
        return Markers([*calls, *ends])
