"""Gemma's argument objects: `{key:<|"|>text<|"|>,n:42,l:[…]}`, bare keys, strings between tokens of their own.

The string token also stands for a quote inside a string: it closes one only if the grammar goes on behind it. JSON's
quotes are read too, and a string whose opening token is missing.
"""

from collections.abc import Callable, Mapping
from json import dumps
from re import compile
from typing import Any, ClassVar, Final

from services.parser.coercion import number_text
from services.parser.readers.values import CONSTANTS, Values
from services.parser.shapes import END, MORE, Found, Markers, Shape
from services.parser.tape import Reading, Say, Tape, escaped, quoted

_BARE: Final = compile(r"[^,}\]<]*+")
_TRIGGER: Final = compile("<").search


class GemmaValues(Values):
    """`token` stands on both sides of a string, `closer` ends the call."""

    object: ClassVar[Shape] = Shape("{")

    def __init__(self, token: str, closer: str) -> None:
        self._token = token
        self._opens = Shape(token)
        self._closer = Shape(closer)
        self._closes = Markers(
            [
                (Shape(token, then=(",", "}", "]", END)), "end"),
                (Shape(token), "quote"),
                (self._closer, "broken"),
            ]
        )
        self._keys = tuple(
            Shape(f"{front}{{{hole}}}{back}{{ws}}{colon}")
            for front, hole, back in ((token, "key", token), ('"', "key", '"'), ("", "bare", ""))
            for colon in ":="
        )
        self._next = tuple(Shape("," + "{ws}" + key.text) for key in self._keys)

    def key(self, tape: Tape, say: Say) -> Reading[bool]:
        """A key and its colon."""
        found = yield from tape.match(*self._keys)
        if found is None:
            return False
        groups = found[1].groupdict()
        say(quoted(groups.get("key") or groups["bare"]) + ":" + (yield from tape.blanks()))
        return True

    def scalar(self, tape: Tape, say: Say, live: bool, closer: str) -> Reading[bool]:
        """A string between tokens or quotes, a number or constant, or bare text."""
        if (yield from tape.match(self._opens)) is not None:
            return (yield from self._string(tape, say, live))
        if (yield from tape.peek()) in ('"', "'"):
            return (yield from self.string(tape, say, live))
        return (yield from self._bare(tape, say, closer))

    def _string(self, tape: Tape, say: Say, live: bool) -> Reading[bool]:
        say('"')
        while True:
            at = self._closes.find(tape.text, tape.position, tape.final)
            end = len(tape.text) if at < 0 else at
            say(escaped(tape.text[tape.position : end]))
            tape.position = end
            found = self._closes.at(tape.text, at, tape.final) if at >= 0 else MORE
            if isinstance(found, Found):
                if found.means == "broken":
                    return False
                tape.position = found.match.end()
                if found.means == "end":
                    say('"')
                    return True
                say('\\"')
            elif found is not MORE:
                say(escaped(tape.text[tape.position]))
                tape.position += 1
            elif tape.final:
                return False
            else:
                if live and at < 0:
                    tape.trigger, tape.escape = _TRIGGER, True
                yield
                tape.trigger = None

    def _bare(self, tape: Tape, say: Say, closer: str) -> Reading[bool]:
        """Text without an opening token: up to a closing one, a bracket, or a comma that the next key follows."""
        parts: list[str] = []
        while True:
            found = _BARE.match(tape.text, tape.position)
            assert found is not None
            parts.append(found[0])
            tape.position = found.end()
            char = yield from tape.peek()
            if not char:
                return False
            if char == "<":
                if (yield from tape.match(self._opens)) is not None:
                    say(quoted("".join(parts)))
                    return True
                if (yield from tape.match(self._closer)) is not None:
                    return False
            elif char in "}]" or (closer == "]" and char == ",") or (yield from self._key_follows(tape)):
                text = "".join(parts).strip()
                say(CONSTANTS.get(text) or number_text(text, True) or quoted(text))
                return bool(text)
            parts.append(char)
            tape.position += 1

    def _key_follows(self, tape: Tape) -> Reading[bool]:
        found = yield from tape.match(*self._next)
        if found is not None:
            tape.position = found[1].start()
        return found is not None


def gemma_style(token: str) -> Callable[[Mapping[str, Any]], str]:
    """Writes such objects."""

    def write(value: Any) -> str:
        if isinstance(value, str):
            return token + value + token
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{key}:{write(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(write, value)) + "]"
        return dumps(value)

    return write
