"""The grammar of families that write messages with headers, and its reader.

    <|start|>assistant<|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant to=functions.NAME …<|message|>{…}<|call|>

The prompt contains the start of the first header. The header decides the kind of a message; text between messages is
dropped. If a header breaks off or is missing, the parts that were read decide.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeAlias

from services.families.grammar.markup import Call, CallReader
from services.families.grammar.scanner import Reader
from services.families.grammar.shapes import Markers, Shape
from services.families.grammar.turn import CallOpener, TurnState, read_prose


@dataclass(frozen=True)
class HeaderPart:
    """One piece of a header. It sets `field` to `value`, or to the text of the hole with the field's name."""

    shape: Shape
    field: str = ""
    value: str | None = None
    last: bool = False
    """The message begins after it."""


@dataclass(frozen=True)
class Tool:
    """A message that is a call of `name`."""

    name: str | None
    body: CallReader


class MessageKind(Enum):
    """The kind of a message that is not a call."""

    REASONING = "reasoning"
    TEXT = "text"
    NOTHING = "not for the client"


Fields: TypeAlias = Mapping[str, str]
Route: TypeAlias = "Callable[[Fields], MessageKind | Tool]"


class _Edge(Enum):
    END = "the message ends"
    START = "a header begins after it"
    AGAIN = "a header begins with it, without a start"


@dataclass(frozen=True, kw_only=True)
class Channels:
    """The grammar: `starts` precede a header, `again` are first pieces of a header without start, `ends` end a message.

    `interrupts` are first pieces of a header that end reasoning which was left open; in text they are text.
    """

    header: tuple[HeaderPart, ...]
    route: Route
    starts: tuple[Shape, ...]
    ends: tuple[str, ...]
    again: tuple[Shape, ...] = ()
    interrupts: tuple[Shape, ...] = ()

    def __call__(self, turn: TurnState) -> Reader[None]:
        """Reads a turn."""
        scanner = turn.scanner
        kind: MessageKind | Tool | None = MessageKind.REASONING
        if not turn.reasoning:
            kind = yield from self._header(turn, first=True)
        while kind is not None:
            edge = yield from self._message(turn, kind)
            if edge is _Edge.END:
                scanner.record()
                found = yield from scanner.seek(self._between)
                turn.blocks.passed(scanner.recorded())
                if found is None:
                    break
                if found.meaning is _Edge.START:
                    scanner.position = found.match.end()
            elif edge is None:
                break
            kind = yield from self._header(turn, first=False)
        scanner.position = len(scanner.text)

    def _header(self, turn: TurnState, first: bool) -> Reader[MessageKind | Tool | None]:
        """Reads a header; None if the input ends in it."""
        scanner = turn.scanner
        turn.reasoning = False
        fields: dict[str, str] = {}
        shapes = [piece.shape for piece in self.header]
        while True:
            found = yield from scanner.match(*shapes)
            if found is None:
                break
            piece, groups = self.header[found[0]], found[1].groupdict()
            if piece.field:
                fields[piece.field] = piece.value if piece.value is not None else groups[piece.field]
            if piece.last:
                return self.route(fields)
        if scanner.final and (fields or not first or self._broken(turn)):
            return None
        return self.route(fields) if fields else MessageKind.TEXT

    def _broken(self, turn: TurnState) -> bool:
        """Whether the input ended inside the first piece."""
        scanner = turn.scanner
        cuts = [cut for piece in self.header if (cut := piece.shape.cut(scanner.text, scanner.position))]
        return any(cuts) and (not scanner.stopped or any(marked for marked, _ in cuts if scanner.rest()[0] == "<"))

    def _message(self, turn: TurnState, kind: MessageKind | Tool) -> Reader[_Edge | None]:
        """Reads a message; returns the kind of marker that ended it, None at the end of the input."""
        scanner = turn.scanner
        if isinstance(kind, Tool) and turn.calls:
            after = yield from kind.body.read(turn, CallOpener(name=kind.name))
            if after:
                turn.prose(after)
                turn.end_prose()
            return _Edge.END
        turn.reasoning = kind is MessageKind.REASONING
        if kind is MessageKind.NOTHING:
            found = yield from scanner.seek(self._within)
            if found is not None and found.meaning is not _Edge.AGAIN:
                scanner.position = found.match.end()
        else:
            within = self._within_reasoning if turn.reasoning else self._within
            found = yield from read_prose(turn, within, within)
            turn.end_prose()
            if found is not None and found.meaning is _Edge.AGAIN:
                scanner.position = found.match.start()
        return found.meaning if found else None

    @cached_property
    def _between(self) -> Markers[_Edge]:
        return self._edges()

    @cached_property
    def _within(self) -> Markers[_Edge]:
        return self._edges(self.ends)

    @cached_property
    def _within_reasoning(self) -> Markers[_Edge]:
        return self._edges(self.ends, self.interrupts)

    def _edges(self, ends: tuple[str, ...] = (), interrupts: tuple[Shape, ...] = ()) -> Markers[_Edge]:
        starts, again = ((s, _Edge.START) for s in self.starts), ((s, _Edge.AGAIN) for s in (*self.again, *interrupts))
        return Markers([*((Shape(end), _Edge.END) for end in ends), *starts, *again])


@dataclass(frozen=True)
class Section:
    """The body of a message with several calls, each after its own marker, up to one of `ends`, which is not passed.

    Text between the calls is dropped. A message to a tool of the request without any call is a call that never
    completes.
    """

    calls: tuple[Call, ...]
    ends: tuple[Shape, ...]
    rename: tuple[str, ...] = ()
    """Namespaces that may precede a tool's name in the header."""

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[str | None]:
        """Reads the calls."""
        name = turn.tools.named(opener.name or "", self.rename)
        while True:
            turn.scanner.record()
            found = yield from turn.scanner.seek(self._markers)
            turn.blocks.passed(turn.scanner.recorded())
            if found is None or found.meaning is None:
                if name in turn.tools:
                    turn.open_call(name)
                    turn.blocks.close(False)
                return None
            name = ""
            turn.scanner.position = found.match.end()
            yield from found.meaning.read(turn, found.match)

    @cached_property
    def _markers(self) -> Markers[Call | None]:
        ends: list[tuple[Shape, Call | None]] = [(shape, None) for shape in self.ends]
        return Markers([*((call.shape, call) for call in self.calls), *ends])
