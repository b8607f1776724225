"""Calls written as Python: `[f(a='x', b=1), g()]`, in a list or line by line, keyword arguments only."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from services.parser.readers.values import PYTHON
from services.parser.shapes import Markers, Shape
from services.parser.tape import Reading, quoted
from services.parser.turn import Opener, Turn

_CALL: Final = Shape("{name}{ws}(")
_KEY: Final = Shape("{bare}{ws}=")


@dataclass(frozen=True)
class Pythonic:
    """The grammar behind `marker`; `closes` end it. Without a marker the list is its own, and one in running text
    counts only if it calls a tool of the request."""

    marker: str = ""
    closes: tuple[str, ...] = ()

    def read(self, turn: Turn, opener: Opener) -> Reading[str | None]:
        """Reads the calls."""
        return (yield from _Calls(self, turn, opener).read())

    @cached_property
    def ends(self) -> Markers[None]:
        """Where to go on after a broken call."""
        return Markers([(Shape(close), None) for close in self.closes])


class _Calls:
    """The calls of one list."""

    __slots__ = ("_any", "_grammar", "_lead", "_turn")

    def __init__(self, grammar: Pythonic, turn: Turn, opener: Opener) -> None:
        self._grammar, self._turn = grammar, turn
        self._any = False
        self._lead = grammar.marker
        turn.tape.position -= len(opener.text) - len(grammar.marker)

    def read(self) -> Reading[str | None]:
        tape = self._turn.tape
        tape.keep()
        yield from tape.blanks()
        if (yield from tape.peek()) == "[":
            tape.position += 1
        while (yield from self._more()):
            if not (yield from self._call()):
                return (yield from self._failed())
            self._any = True
            tape.keep()
        if not self._any:
            return (yield from self._failed())
        tape.release()
        return None

    def _more(self) -> Reading[bool]:
        """Another call begins here; False behind the list's end."""
        tape = self._turn.tape
        while True:
            yield from tape.blanks()
            char = yield from tape.peek()
            if char not in (",", ";"):
                break
            tape.position += 1
        if char == "]":
            tape.position += 1
        return char not in ("", "]", "<") and (not self._any or (yield from self._named()))

    def _named(self) -> Reading[bool]:
        tape = self._turn.tape
        found = yield from tape.match(_CALL)
        if found is not None:
            tape.position = found[1].start()
        return found is not None

    def _call(self) -> Reading[bool]:
        """One call, from its name to its closing bracket; leaves the block open if it fails behind that."""
        turn = self._turn
        tape, say = turn.tape, turn.blocks.say
        found = yield from tape.match(_CALL)
        if found is None:
            return False
        name = turn.tools.named(found[1]["name"])
        if not self._grammar.marker and not self._any and turn.begun and name not in turn.tools:
            return False
        before = "{"
        while True:
            yield from tape.blanks()
            if (yield from tape.peek()) == ")":
                break
            key = yield from tape.match(_KEY)
            if key is None:
                return False
            if before == "{":
                self._open(name)
            say(before + quoted(key[1]["bare"]) + ": ")
            if not (yield from PYTHON.copy(tape, say, live=True)):
                return False
            before = ", "
            yield from tape.blanks()
            char = yield from tape.peek()
            if char == ",":
                tape.position += 1
            elif char != ")":
                return False
        tape.position += 1
        if before == "{":
            self._open(name)
        say("{}" if before == "{" else "}")
        turn.blocks.close()
        return True

    def _open(self, name: str) -> None:
        self._turn.tape.release()
        self._turn.end_prose()
        self._turn.blocks.open("tool_use", name)

    def _failed(self) -> Reading[str | None]:
        turn, tape = self._turn, self._turn.tape
        text = self._lead + tape.release()
        if turn.blocks.kind != "tool_use":
            if tape.final and not tape.stopped:
                tape.position = len(tape.text)
                return None
            return None if self._any else text
        turn.blocks.close(False)
        if self._grammar.closes:
            yield from tape.seek(self._grammar.ends)
        return None


def python_style(arguments: Mapping[str, Any]) -> str:
    """Keyword arguments."""
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())
