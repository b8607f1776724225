"""Reads the prose of a turn: reasoning and text up to a marker, or all text as it is."""

from re import compile
from typing import Final, TypeVar

from services.families.grammar.scanner import PlainStretch, Reader
from services.families.grammar.shapes import MORE, MarkerCut, MarkerMatch, Markers, More
from services.families.grammar.turn_state import TurnState

T = TypeVar("T")
_ALL_PLAIN: Final = PlainStretch(compile(r"(?!)").search)


def read_prose(
    turn: TurnState,
    boundary: Markers[T],
    running: Markers[T],
    stop: T | None = None,
    tail: T | None = None,
) -> Reader[MarkerMatch[T] | None]:
    """Reads prose of the current kind up to the marker that ends it, which is passed over; None at
    the input's end.

    `boundary` are the markers that count before the block's first character, `running` those inside
    it. A marker that means `stop` is buffered like trailing blanks, and dropped if nothing follows
    it. One that means `tail` belongs to the call before it.

    If the input ends inside a marker: in running prose a piece of a marker is text, and a whole
    marker is dropped if the input was cut off, or if more than the marker is there. At a boundary
    it is dropped unless the model stopped.
    """
    scanner = turn.scanner
    stretch = PlainStretch(running.trigger)
    while True:
        if turn.started:
            marker = _pass_prose(turn, running)
        else:
            turn.buffer((yield from scanner.blanks()))
            marker = boundary.at(scanner.text, scanner.position, scanner.final)

        if marker is MORE:
            yield None
        elif isinstance(marker, MarkerMatch):
            scanner.position = marker.match.end()
            if marker.meaning is not stop:
                return marker
            turn.buffer(marker.match[0])
        elif isinstance(marker, MarkerCut) and _is_dropped(turn, marker, tail):
            scanner.position = len(scanner.text)
            return None
        elif scanner.position < len(scanner.text):
            _pass_character(turn, boundary)
        elif scanner.final:
            return None
        else:
            yield stretch if turn.flowing else None


def _is_dropped(turn: TurnState, cut: MarkerCut[T], tail: T | None) -> bool:
    """Whether the incomplete marker at the end of the input is dropped; otherwise it is text."""
    stopped = turn.scanner.stopped
    if turn.started:
        return cut.marked and (cut.more or not stopped)
    return not stopped or (cut.marked and cut.more) or cut.meaning is tail


def _pass_character(turn: TurnState, markers: Markers[T]) -> None:
    """Adds a character that begins none of `markers`, or only a piece of one."""
    scanner = turn.scanner
    turn.quotes = turn.quotes or markers.names(scanner.text, scanner.position)
    scanner.position += 1
    turn.add_prose(scanner.text[scanner.position - 1])


def _pass_prose(
    turn: TurnState, markers: Markers[T]
) -> MarkerMatch[T] | MarkerCut[T] | More | None:
    """Adds prose up to a marker, or to the end; returns the marker."""
    scanner = turn.scanner
    text = scanner.text
    look = scanner.position
    while True:
        at = markers.find(text, look, scanner.final)
        end = len(text) if at < 0 else at
        if end > scanner.position:
            piece = text[scanner.position : end]
            scanner.position = end
            turn.add_prose(piece)
        if at < 0:
            return None
        marker = markers.at(text, at, scanner.final, turn.line_start)
        if marker is not None:
            return marker
        turn.quotes = turn.quotes or markers.names(text, at, turn.line_start)
        look = at + 1


def read_verbatim(turn: TurnState) -> Reader[None]:
    """Writes all text, including blanks at either end."""
    scanner = turn.scanner
    blocks = turn.blocks
    while not scanner.final:
        if scanner.position < len(scanner.text):
            if blocks.kind is None:
                blocks.open("text", chars_to_end=len(scanner.text) - scanner.position)
            blocks.write(scanner.rest())
            scanner.position = len(scanner.text)
        yield None if blocks.kind is None else _ALL_PLAIN
