"""Reads calls in Python: `[f(a='x', b=1), g()]`, in a list or line by line, keyword arguments only.

A call with other text between its closing bracket and the next call or the end of the list never
completes: the bracket may be text of a string.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from services.families.grammar.scanner import Reader
from services.families.grammar.shapes import Markers, Shape, closing_shapes, with_meaning
from services.families.grammar.turn_state import (
    IS_CALL,
    CallOpener,
    CallReading,
    TurnState,
    not_a_call,
)
from services.families.readers.arguments import ArgumentWriter
from services.families.readers.json_values import drop
from services.families.readers.python_values import PYTHON

_CALL: Final = Shape("{name}{ws}(")
_KEY: Final = Shape("{bare}{ws}=")
_AFTER_CALL: Final = tuple(
    Shape("{ws}" + text)
    for text in ("]", ",{ws}]", *(mark + "{ws}{name}{ws}(" for mark in ("", ",", ";")))
)
"""Shapes that may follow a call: the end of the list, or the next call."""


@dataclass(frozen=True)
class Pythonic:
    """The grammar after `marker`, up to one of `call_closers`. A list without a marker is its own
    marker, and counts in running text only if it calls a tool of the request."""

    marker: str = ""
    call_closers: tuple[str, ...] = ()

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[CallReading]:
        """Reads the calls."""
        return (yield from _PythonCallReader(self, turn, opener).read())

    @cached_property
    def ends(self) -> Markers[None]:
        """The markers at which reading continues after a malformed call."""
        return Markers(with_meaning(None, self.call_closers))

    @cached_property
    def after_call(self) -> tuple[Shape, ...]:
        """Shapes that may follow a call."""
        closers = closing_shapes(self.call_closers)
        return (*_AFTER_CALL, *(Shape("{ws}" + closer.text) for closer in closers))


class _PythonCallReader:
    def __init__(self, grammar: Pythonic, turn: TurnState, opener: CallOpener) -> None:
        self._grammar = grammar
        self._turn = turn
        self._any = False
        """A call has been read."""
        self._in_list = False
        turn.scanner.position -= len(opener.text) - len(grammar.marker)

    def read(self) -> Reader[CallReading]:
        scanner = self._turn.scanner
        scanner.start_recording()
        yield from scanner.blanks()
        if (yield from scanner.peek()) == "[":
            self._in_list = True
            scanner.position += 1
        while (yield from self._more()):
            if not (yield from self._call()):
                return (yield from self._failed())
            self._any = True
            scanner.start_recording()
        if not self._any:
            return (yield from self._failed())
        scanner.stop_recording()
        return IS_CALL

    def _more(self) -> Reader[bool]:
        """Returns whether another call begins here; passes the end of the list."""
        scanner = self._turn.scanner
        while True:
            yield from scanner.blanks()
            char = yield from scanner.peek()
            if char not in (",", ";"):
                break
            scanner.position += 1
        if char == "]":
            scanner.position += 1
        return char not in ("", "]", "<") and (not self._any or (yield from scanner.follows(_CALL)))

    def _call(self) -> Reader[bool]:
        """Reads one call, from its name to its closing bracket; a block that fails in between stays
        open."""
        turn = self._turn
        name = yield from self._name()
        if not name:
            return False
        arguments = ArgumentWriter(turn.blocks)
        while (yield from self._another_argument()):
            if not (yield from self._key(name, arguments)):
                return False
            write = drop if arguments.broken else turn.blocks.write
            if not (yield from PYTHON.copy(turn.scanner, write, live=not arguments.broken)):
                return False
            if not (yield from self._argument_end()):
                return False
        turn.scanner.position += len(")")
        if not arguments.keys:
            turn.open_call(name)
        arguments.end()
        if arguments.broken or not (yield from self._ends()):
            return False
        turn.blocks.close()
        return True

    def _name(self) -> Reader[str]:
        """Passes a call's name and opening bracket; "" where no call begins. In running text, where
        no marker opened the call, it must be one of a tool of the request."""
        turn = self._turn
        opening = yield from turn.scanner.match(_CALL)
        if opening is None:
            return ""
        name = turn.tools.registered_name(opening[1]["name"])
        unmarked = not self._grammar.marker and not self._any and turn.started
        return "" if unmarked and name not in turn.tools else name

    def _ends(self) -> Reader[bool]:
        """Whether a call ends after its closing bracket. Outside of a list a line may do that; so
        does a model that stops, but not a cut, after which other text could follow."""
        scanner = self._turn.scanner
        if not self._in_list and (yield from scanner.peek()) in ("\n", "\r"):
            return True
        after_call = self._grammar.after_call
        if (yield from scanner.follows(*after_call)):
            return True
        cuts = (shape.cut(scanner.text, scanner.position) for shape in after_call)
        return scanner.stopped and (not scanner.rest().strip() or any(cuts))

    def _another_argument(self) -> Reader[bool]:
        scanner = self._turn.scanner
        yield from scanner.blanks()
        return (yield from scanner.peek()) != ")"

    def _key(self, name: str, arguments: ArgumentWriter) -> Reader[bool]:
        """Reads what precedes a value; the first key opens the block."""
        key = yield from self._turn.scanner.match(_KEY)
        if key is None:
            return False
        if not arguments.keys:
            self._turn.open_call(name)
        arguments.begin(key[1]["bare"])
        return True

    def _argument_end(self) -> Reader[bool]:
        """Passes the comma after a value; returns whether that or the closing bracket is here."""
        scanner = self._turn.scanner
        yield from scanner.blanks()
        char = yield from scanner.peek()
        if char == ",":
            scanner.position += 1
        return char in (",", ")")

    def _failed(self) -> Reader[CallReading]:
        turn = self._turn
        scanner = turn.scanner
        text = self._grammar.marker + scanner.stop_recording()
        if turn.blocks.kind != "tool_use":
            if scanner.final and not scanner.stopped:
                scanner.position = len(scanner.text)
                return IS_CALL
            return IS_CALL if self._any else not_a_call(text)
        turn.blocks.close(False)
        if self._grammar.call_closers:
            yield from scanner.seek(self._grammar.ends)
        return IS_CALL


def python_style(arguments: Mapping[str, Any]) -> str:
    """Writes keyword arguments."""
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())
