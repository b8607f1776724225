"""Reasoning and text: passed on as they come, up to a marker."""

from typing import TypeVar

from services.parser.shapes import MORE, Cut, Found, Markers, More
from services.parser.tape import Reading
from services.parser.turn import Turn

T = TypeVar("T")


def prose(
    turn: Turn, boundary: Markers[T], running: Markers[T], stop: T | None = None, tail: T | None = None
) -> Reading[Found[T] | None]:
    """Reads the present kind of prose up to the marker that ends it, which is passed over; None at the input's end.

    `boundary` are the markers before the block's first character, `running` those in it. One that means `stop` waits
    like trailing blanks: it is dropped if nothing follows. One that means `tail` is the last part of something before.

    Where the input ends inside a marker: in running prose, what could yet be text is text, and a marker is one if the
    input was cut off or more than the marker is there. At a boundary it is a marker unless the model stopped by itself.
    """
    tape = turn.tape
    while True:
        if turn.begun:
            answer = _pass(turn, running)
        else:
            turn.hold((yield from tape.blanks()))
            answer = boundary.at(tape.text, tape.position, tape.final)
        if isinstance(answer, Found):
            tape.position = answer.match.end()
            if answer.means is not stop:
                return answer
            turn.hold(answer.match[0])
        elif isinstance(answer, Cut) and _lost(turn, answer, tail):
            tape.position = len(tape.text)
            return None
        elif answer is MORE:
            yield
        elif tape.position < len(tape.text):
            tape.position += 1
            turn.prose(tape.text[tape.position - 1])
        elif tape.final:
            return None
        else:
            if turn.open and not turn.holding:
                tape.trigger, tape.escape = running.trigger, False
            yield
            tape.trigger = None


def _lost(turn: Turn, cut: Cut[T], tail: T | None) -> bool:
    """The end of the input is a piece of a marker, not text."""
    stopped = turn.tape.stopped
    if turn.begun:
        return cut.marked and (cut.more or not stopped)
    return not stopped or (cut.marked and cut.more) or cut.means is tail


def _pass(turn: Turn, markers: Markers[T]) -> Found[T] | Cut[T] | More | None:
    """Passes prose on up to a marker, or to the end; returns what stands there."""
    tape = turn.tape
    text = tape.text
    look = tape.position
    while True:
        at = markers.find(text, look, tape.final)
        stop = len(text) if at < 0 else at
        if stop > tape.position:
            piece = text[tape.position : stop]
            tape.position = stop
            turn.prose(piece)
        if at < 0:
            return None
        answer = markers.at(text, at, tape.final, turn.line_start)
        if answer is not None:
            return answer
        look = at + 1
