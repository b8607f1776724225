"""The `Scanner` that supplies the input of readers, and the `BlockWriter` that collects their
events.

A reader is a generator. It looks at `scanner.text` from `scanner.position` on, moves `position`
past what it has read, and yields when it needs more; after a yield the text has grown, or
`scanner.final` is set. Text before `position` is discarded, so only the few characters that may
become a marker are read twice.

What a reader yields is the `PlainStretch` that it is in, if it holds nothing back: input that needs
no reader. All other input must pass the reader, which then yields None.
"""

from collections.abc import Callable, Generator
from json.encoder import encode_basestring
from re import Match, compile
from typing import NamedTuple, TypeAlias, TypeVar

from schemas.events import BlockEvent, BlockKind, BlockStart, BlockStop, Delta, FinishReason
from services.families.grammar.shapes import MORE, MarkerCut, MarkerMatch, Markers, Shape

R = TypeVar("R")
T = TypeVar("T")
_BLANKS = compile(r"[ \t\r\n]*+").match
_NO_BLOCK = -1
"""In events that are held back: the block of text that belongs to none."""
Write: TypeAlias = Callable[[str], None]
Search: TypeAlias = Callable[[str], Match[str] | None]


class PlainStretch(NamedTuple):
    """A part of a block where most input is plain: without a match of `trigger` it goes into the
    block as it is, or escaped for JSON if `escape`."""

    trigger: Search
    escape: bool = False


Reader: TypeAlias = Generator[PlainStretch | None, None, R]


def quoted(text: str) -> str:
    """`text` as a JSON string."""
    return encode_basestring(text)


def escaped(text: str) -> str:
    """`text` as the inside of a JSON string."""
    return encode_basestring(text)[1:-1]


class Scanner:
    """The input of one turn, and how far it was read."""

    __slots__ = (
        "_recorded_to",
        "_recording",
        "final",
        "position",
        "reason",
        "text",
    )

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.position = 0
        self.final = False
        self.reason = FinishReason.STOP
        """Why the input ended; meaningful once `final` is set."""
        self._recording: list[str] | None = None
        self._recorded_to = 0

    def extend(self, text: str) -> None:
        """Adds input."""
        if self._recording is not None:
            self._recording.append(self.text[self._recorded_to : self.position])
            self._recorded_to = 0
        if self.position < len(self.text):
            text = self.text[self.position :] + text
        self.text = text
        self.position = 0

    def start_recording(self) -> None:
        """Starts to record the text that is passed over."""
        self._recording = []
        self._recorded_to = self.position

    @property
    def is_recording(self) -> bool:
        """Whether passed text is recorded."""
        return self._recording is not None

    def stop_recording(self) -> str:
        """Ends the recording; returns the text that was passed over since its start."""
        text = "".join([*(self._recording or ()), self.text[self._recorded_to : self.position]])
        self._recording = None
        return text

    @property
    def stopped(self) -> bool:
        """Whether the input has ended because the model stopped."""
        return self.final and self.reason is FinishReason.STOP

    def rest(self) -> str:
        """The input from here on."""
        return self.text[self.position :]

    @property
    def stopped_here(self) -> bool:
        """Whether the model stopped, and only blanks are left."""
        return self.stopped and not self.rest().strip()

    def blanks(self) -> Reader[str]:
        """Passes over all blanks here, and returns them."""
        passed = ""
        while True:
            match = _BLANKS(self.text, self.position)
            assert match is not None
            self.position = match.end()
            passed += match[0]
            if self.position < len(self.text) or self.final:
                return passed
            yield None

    def peek(self, count: int = 1) -> Reader[str]:
        """The next `count` characters; fewer at the end of the input."""
        while len(self.text) - self.position < count and not self.final:
            yield None
        return self.text[self.position : self.position + count]

    def match(self, *shapes: Shape) -> Reader[tuple[int, Match[str]] | None]:
        """Passes over the first of `shapes` that matches here; returns its number and match, None
        if none matches."""
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
            yield None

    def follows(self, *shapes: Shape) -> Reader[bool]:
        """Whether one of `shapes` matches here; passes over nothing."""
        match = yield from self.match(*shapes)
        if match is not None:
            self.position = match[1].start()
        return match is not None

    def skip(self, *shapes: Shape) -> Reader[None]:
        """Passes over all of `shapes` that follow each other here."""
        while (yield from self.match(*shapes)) is not None:
            pass

    def seek(self, markers: Markers[T]) -> Reader[MarkerMatch[T] | None]:
        """Passes over everything up to one of `markers`, and stops in front of it; None at the end
        of the input, also if the input ends inside a marker."""
        while True:
            at = markers.find(self.text, self.position, self.final)
            marker = markers.at(self.text, at, self.final) if at >= 0 else MORE
            if at >= 0:
                self.position = at
            elif not self.final or not self.text[self.position :].strip():
                self.position = len(self.text)
            if isinstance(marker, MarkerMatch):
                return marker
            if isinstance(marker, MarkerCut) or (marker is MORE and self.final):
                return None
            if marker is MORE:
                yield None
            else:
                self.position += 1


class BlockWriter:
    """Writes the blocks of one turn, in order. Text that is written between two `drain`s becomes
    one delta.

    Where a closer is missing, what ended a call may have been text of one of its values. Then the
    call's end is held back: `end_call`.
    """

    def __init__(self) -> None:
        self.index = -1
        self.kind: BlockKind | None = None
        """The kind of the open block."""
        self.length = 0
        """Characters of the open block that were returned as deltas."""
        self.chars_to_end: dict[int, int] = {}
        """For each reasoning or text block: the input from its first character on when it opened,
        in characters."""
        self.is_last_complete = True
        """Whether the last block that was closed is complete."""
        self.broken_calls = 0
        """The number of calls that are not complete, or were given up as text."""
        self._events: list[BlockEvent] = []
        self._parts: list[str] = []
        self.write: Write = self._parts.append
        """Adds text to the open block."""
        self._find_stray_end: Search | None = None
        """Finds the end of a call at the end of text; set while events are held back, which then
        are `_events`."""
        self._ready: list[BlockEvent] = []
        """The events before those that are held back."""

    def open(
        self,
        kind: BlockKind,
        name: str | None = None,
        call_id: str | None = None,
        *,
        chars_to_end: int | None = None,
    ) -> None:
        """Starts a block, after closing the open one. `chars_to_end`: see the attribute."""
        self.close()
        self.index += 1
        if chars_to_end is not None:
            self.chars_to_end[self.index] = chars_to_end
        self.kind = kind
        self.length = 0
        self._events.append(BlockStart(self.index, kind, name, call_id))

    def close(self, complete: bool = True) -> None:
        """Ends the open block, if there is one."""
        if self.kind is not None:
            self._flush()
            self._events.append(BlockStop(self.index, complete, self.length))
            self.is_last_complete = complete
            if not complete:
                self.broken_calls += 1
            self.kind = None

    @property
    def is_buffering(self) -> bool:
        """Whether events are held back."""
        return self._find_stray_end is not None

    def end_call(self, complete: bool, find_stray_end: Search | None, *, all_closed: bool) -> None:
        """Ends the open call. If it is not `all_closed` (its own closer is missing, or a value's),
        its end is held back to the end of the turn, with all that follows. The calls that are held
        back do not complete if `find_stray_end` finds the end of a call at the end of text after
        one; None: none is held back."""
        if find_stray_end is not None and self._find_stray_end is None and not all_closed:
            self._flush()
            self._ready = self._events
            self._events = []
            self._find_stray_end = find_stray_end
        self.close(complete)

    def note_passed(self, text: str) -> None:
        """Notes a piece of text that no block has."""
        if self._find_stray_end is not None:
            self._flush()
            self._events.append(Delta(_NO_BLOCK, 0, text))

    def settle(self, *, stopped: bool) -> None:
        """Decides about the calls that are held back. They complete only if the model ended the
        turn (`stopped`): a cut turn might have gone on with anything. A call without an end has
        taken the end of one before it."""
        if self._find_stray_end is None:
            return
        calls = self._buffered_calls()
        complete = stopped and not any(map(self._find_stray_end, self._texts_between(calls)))
        events = [event for event in self._events if event.block != _NO_BLOCK]
        for at in reversed(range(len(events))):
            event = events[at]
            if isinstance(event, BlockStop) and event.block in calls:
                complete = complete and event.complete
                if event.complete and not complete:
                    self.broken_calls += 1
                events[at] = BlockStop(event.block, complete, event.length)
        self._events = [*self._ready, *events]
        self._ready = []
        self._find_stray_end = None

    def _buffered_calls(self) -> set[int]:
        """The blocks of the calls with an end that is held back; the first of them may have started
        before."""
        starts = [event for event in self._events if isinstance(event, BlockStart)]
        return {self._events[0].block, *(e.block for e in starts if e.kind == "tool_use")}

    def _texts_between(self, calls: set[int]) -> list[str]:
        """The text after each of `calls`, up to the next."""
        texts = [list[str]()]
        for event in self._events:
            if isinstance(event, BlockStart) and event.kind == "tool_use":
                texts.append([])
            elif isinstance(event, Delta) and event.block not in calls:
                texts[-1].append(event.text)
        return ["".join(parts) for parts in texts]

    def discard(self) -> BlockKind | None:
        """Drops what was written, as if the open block had not begun; returns its kind, except for
        a tool_use.

        An open tool_use stays with all of its text: the text that opens a forced call belongs to
        that call.
        """
        self.settle(stopped=False)
        self.chars_to_end.clear()
        if self.kind == "tool_use":
            events = [event for event in self._events if event.block == self.index]
            starts = [event for event in events if isinstance(event, BlockStart)]
            self._events = [BlockStart(0, e.kind, e.name, e.call_id) for e in starts]
            self.index = 0
            return None
        kind = self.kind
        self.kind = None
        self.index = -1
        self._events.clear()
        self._parts.clear()
        return kind

    def drain(self) -> list[BlockEvent]:
        """All events since the last call, except those that are held back."""
        if self._find_stray_end is not None:
            events = self._ready
            self._ready = []
            return events
        if self._parts:
            self._flush()
        events = self._events
        self._events = []
        return events

    def _flush(self) -> None:
        if self._parts:
            text = "".join(self._parts)
            self._parts.clear()
            if text:
                self._events.append(Delta(self.index, self.length, text))
                self.length += len(text)
