"""Reasoning and text: passed on as they come, up to a marker."""

from typing import TypeVar

from services.parser.shapes import MORE, Cut, Found, Markers, More
from services.parser.tape import Reading
from services.parser.turn import Turn

T = TypeVar("T")


def prose(turn: Turn, boundary: Markers[T], running: Markers[T], stop: T) -> Reading[Found[T] | None]:
    """Reads the present kind of prose up to the marker that ends it, which is passed over; None at the input's end.

    `boundary` are the markers before the block's first character, `running` those in it. One that means `stop` waits
    like trailing blanks: it is dropped if nothing follows. If the input is cut off inside a marker, the marker's piece
    is dropped; if the model stopped there by itself, a marker with nothing behind it is text.
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
        elif isinstance(answer, Cut) and (answer.body or not tape.stopped):
            tape.position = len(tape.text)
            return None
        elif answer is MORE:
            yield
        elif tape.position < len(tape.text):
            turn.prose(tape.text[tape.position])
            tape.position += 1
        elif tape.final:
            return None
        else:
            if turn.begun and not turn.holding:
                tape.trigger, tape.escape = running.trigger, False
            yield
            tape.trigger = None


def _pass(turn: Turn, markers: Markers[T]) -> Found[T] | Cut | More | None:
    """Passes prose on up to a marker, or to the end; returns what stands there."""
    tape = turn.tape
    text = tape.text
    look = tape.position
    while True:
        at = markers.find(text, look, tape.final)
        stop = len(text) if at < 0 else at
        if stop > tape.position:
            turn.prose(text[tape.position : stop])
            tape.position = stop
        if at < 0:
            return None
        answer = markers.at(text, at, tape.final, turn.line_start)
        if answer is not None:
            return answer
        look = at + 1
