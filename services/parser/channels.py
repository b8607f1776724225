"""Families that write messages with headers: their grammar, and the machine that reads it.

    <|start|>assistant<|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant to=functions.NAME …<|message|>{…}<|call|>

The prompt has written the start of the first header. What a message is follows from its header; between messages there
is nothing but noise. A header that breaks off, or is not there, is made the best of: its message is what is known of
it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeAlias

from services.parser.markup import Body
from services.parser.prose import prose
from services.parser.shapes import Markers, Shape
from services.parser.tape import Reading
from services.parser.turn import Opener, Turn


@dataclass(frozen=True)
class Piece:
    """One piece of a header: a field's value, from a hole of the same name or given."""

    shape: Shape
    field: str = ""
    value: str | None = None
    last: bool = False
    """The message begins behind it."""


@dataclass(frozen=True)
class Tool:
    """A message that is a call of `name`."""

    name: str | None
    body: Body


class Said(Enum):
    """A message that is no call."""

    REASONING = "reasoning"
    TEXT = "text"
    NOTHING = "for nobody here"


Fields: TypeAlias = Mapping[str, str]
Route: TypeAlias = "Callable[[Fields], Said | Tool]"


class _Edge(Enum):
    END = "the message ends"
    START = "a header begins behind it"
    AGAIN = "a header begins with it, without a start"


@dataclass(frozen=True, kw_only=True)
class Channels:
    """The grammar: `starts` begin a header, `again` shapes do so as its own first piece, `ends` end a message."""

    header: tuple[Piece, ...]
    route: Route
    starts: tuple[Shape, ...]
    ends: tuple[str, ...]
    again: tuple[Shape, ...] = ()

    def __call__(self, turn: Turn) -> Reading[None]:
        """Reads a turn."""
        tape = turn.tape
        said: Said | Tool | None = Said.REASONING if turn.reasoning else (yield from self._header(turn, first=True))
        while said is not None:
            edge = yield from self._message(turn, said)
            if edge is _Edge.END:
                found = yield from tape.seek(self._between)
                if found is None:
                    break
                if found.means is _Edge.START:
                    tape.position = found.match.end()
            elif edge is None:
                break
            said = yield from self._header(turn, first=False)
        tape.position = len(tape.text)

    def _header(self, turn: Turn, first: bool) -> Reading[Said | Tool | None]:
        """Reads a header; None if the input ends in it."""
        tape = turn.tape
        turn.reasoning = False
        fields: dict[str, str] = {}
        shapes = [piece.shape for piece in self.header]
        while True:
            found = yield from tape.match(*shapes)
            if found is None:
                break
            piece, groups = self.header[found[0]], found[1].groupdict()
            if piece.field:
                fields[piece.field] = piece.value if piece.value is not None else groups[piece.field]
            if piece.last:
                return self.route(fields)
        if tape.final and (fields or not first or self._broken(turn)):
            return None
        return self.route(fields) if fields else Said.TEXT

    def _broken(self, turn: Turn) -> bool:
        """The input ended inside the very first piece."""
        tape = turn.tape
        cuts = [cut for piece in self.header if (cut := piece.shape.cut(tape.text, tape.position))]
        return any(cuts) and (not tape.stopped or any(marked for marked, _ in cuts if tape.rest()[0] == "<"))

    def _message(self, turn: Turn, said: Said | Tool) -> Reading[_Edge | None]:
        """Reads a message; returns what it ended at, None at the end of the input."""
        tape = turn.tape
        if isinstance(said, Tool) and turn.calls:
            after = yield from said.body.read(turn, Opener(name=said.name))
            if after:
                turn.prose(after)
                turn.end_prose()
            return _Edge.END
        turn.reasoning = said is Said.REASONING
        if said is Said.NOTHING:
            found = yield from tape.seek(self._within)
            if found is not None and found.means is not _Edge.AGAIN:
                tape.position = found.match.end()
        else:
            found = yield from prose(turn, self._within, self._within)
            turn.end_prose()
            if found is not None and found.means is _Edge.AGAIN:
                tape.position = found.match.start()
        return found.means if found else None

    @cached_property
    def _within(self) -> Markers[_Edge]:
        """What ends a message."""
        return Markers([*((Shape(end), _Edge.END) for end in self.ends), *self._begin])

    @cached_property
    def _between(self) -> Markers[_Edge]:
        """What begins a message, after one has ended."""
        return Markers(self._begin)

    @cached_property
    def _begin(self) -> "list[tuple[Shape, _Edge]]":
        return [*((s, _Edge.START) for s in self.starts), *((s, _Edge.AGAIN) for s in self.again)]
