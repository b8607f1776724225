"""What comes in and what goes out: the input that readers walk along, and the blocks that they write.

A reader is a generator over a `Tape`. It looks at `tape.text` from `tape.position` on, moves `position` past what it
has dealt with, and yields when it needs more; after a yield the text has grown or `tape.final` is set. What a reader
leaves behind `position` is gone, so nothing is looked at twice but the few characters that may yet become a marker.
"""

from collections.abc import Callable, Generator
from json.encoder import encode_basestring
from re import Match, compile
from typing import TypeAlias, TypeVar

from schemas.events import BlockEvent, BlockKind, BlockStart, BlockStop, Delta, FinishReason
from services.parser.shapes import MORE, Cut, Found, Markers, Shape

R = TypeVar("R")
T = TypeVar("T")
_BLANKS = compile(r"[ \t\r\n]*+").match
Reading: TypeAlias = Generator[None, None, R]
Say: TypeAlias = Callable[[str], None]
Trigger: TypeAlias = Callable[[str], Match[str] | None]


def quoted(text: str) -> str:
    """`text` as a JSON string."""
    return encode_basestring(text)


def escaped(text: str) -> str:
    """`text` as it stands between the quotes of a JSON string."""
    return encode_basestring(text)[1:-1]


class Tape:
    """The input of one turn."""

    __slots__ = ("_from", "_kept", "escape", "final", "position", "reason", "text", "trigger")

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.position = 0
        self.final = False
        self.reason = FinishReason.STOP
        """Why the input ended; meaningful once `final` is set."""
        self.trigger: Trigger | None = None
        """Set while a reader waits in a plain stretch with nothing held back: text in which it finds nothing is
        part of the open block as it stands (escaped for JSON if `escape`), and need not pass the reader."""
        self.escape = False
        self._kept: list[str] | None = None
        self._from = 0

    def extend(self, text: str) -> None:
        """Adds input."""
        if self._kept is not None:
            self._kept.append(self.text[self._from : self.position])
            self._from = 0
        self.text = self.text[self.position :] + text if self.position < len(self.text) else text
        self.position = 0

    def keep(self) -> None:
        """Remembers what is passed over from here on, until `release`."""
        self._kept, self._from = [], self.position

    def release(self) -> str:
        """What was passed over since `keep`."""
        kept = "".join([*(self._kept or ()), self.text[self._from : self.position]])
        self._kept = None
        return kept

    @property
    def stopped(self) -> bool:
        """The model ended here by itself."""
        return self.final and self.reason is FinishReason.STOP

    def rest(self) -> str:
        """The input that has not been dealt with."""
        return self.text[self.position :]

    def blanks(self) -> Reading[str]:
        """Passes over blanks, as many as come, and returns them."""
        passed = ""
        while True:
            found = _BLANKS(self.text, self.position)
            assert found is not None
            self.position = found.end()
            passed += found[0]
            if self.position < len(self.text) or self.final:
                return passed
            yield

    def peek(self, count: int = 1) -> Reading[str]:
        """The next `count` characters; fewer at the end of the input."""
        while len(self.text) - self.position < count and not self.final:
            yield
        return self.text[self.position : self.position + count]

    def match(self, *shapes: Shape) -> Reading[tuple[int, Match[str]] | None]:
        """The first of `shapes` that stands here, by number, passed over; None if none does."""
        while True:
            for number, shape in enumerate(shapes):
                answer = shape.at(self.text, self.position, self.final)
                if answer is MORE:
                    break
                if answer is not None:
                    self.position = answer.end()
                    return number, answer
            else:
                return None
            yield

    def seek(self, markers: Markers[T]) -> Reading[Found[T] | None]:
        """Passes over everything up to one of `markers` and stops in front of it; None at the end of the input, or
        where a marker is cut off by it."""
        while True:
            at = markers.find(self.text, self.position, self.final)
            found = markers.at(self.text, at, self.final) if at >= 0 else MORE
            if at >= 0:
                self.position = at
            elif not self.final or not self.text[self.position :].strip():
                self.position = len(self.text)
            if isinstance(found, Found):
                return found
            if isinstance(found, Cut) or (found is MORE and self.final):
                return None
            if found is MORE:
                yield
            else:
                self.position += 1


class Blocks:
    """The blocks of one turn, written in order. One is open at a time; what is said in one call becomes one delta."""

    __slots__ = ("_events", "_parts", "behind", "index", "kind", "length", "say")

    def __init__(self) -> None:
        self.index = -1
        self.kind: BlockKind | None = None
        """The kind of the open block."""
        self.length = 0
        """Characters of the open block that are out."""
        self.behind: dict[int, int] = {}
        """For each reasoning or text block: characters from its first one to the end of the input, as it opened."""
        self._events: list[BlockEvent] = []
        self._parts: list[str] = []
        self.say: Say = self._parts.append
        """Adds text to the open block."""

    def open(
        self, kind: BlockKind, name: str | None = None, call_id: str | None = None, *, behind: int | None = None
    ) -> None:
        """Starts a block, after closing the open one. `behind`: see there."""
        self.close()
        self.index += 1
        if behind is not None:
            self.behind[self.index] = behind
        self.kind = kind
        self.length = 0
        self._events.append(BlockStart(self.index, kind, name, call_id))

    def close(self, complete: bool = True) -> None:
        """Ends the open block, if there is one."""
        if self.kind is not None:
            self._flush()
            self._events.append(BlockStop(self.index, complete, self.length))
            self.kind = None

    def forget(self) -> BlockKind | None:
        """Drops what was written, as if the open block had not begun; returns its kind, except for a tool_use.

        A tool_use that is open stays, with all that was said in it: the words that open a forced call belong to it.
        """
        self.behind.clear()
        if self.kind == "tool_use":
            starts = [e for e in self._events if isinstance(e, BlockStart) and e.block == self.index]
            self._events = [BlockStart(0, e.kind, e.name, e.call_id) for e in starts]
            self.index = 0
            return None
        kind, self.kind, self.index = self.kind, None, -1
        self._events.clear()
        self._parts.clear()
        return kind

    def drain(self) -> list[BlockEvent]:
        """All events since the last call."""
        if self._parts:
            self._flush()
        events, self._events = self._events, []
        return events

    def _flush(self) -> None:
        if self._parts:
            text = "".join(self._parts)
            self._parts.clear()
            if text:
                self._events.append(Delta(self.index, self.length, text))
                self.length += len(text)
