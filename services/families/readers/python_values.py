"""Copies Python literals as JSON, as they stream in."""

import re
from typing import ClassVar, Final

from services.families.grammar.scanner import PlainStretch, Reader, Scanner, Write, escaped, quoted
from services.families.grammar.shapes import BLANKS
from services.families.readers.json_values import (
    HEX,
    JSON,
    PLAIN,
    QUOTES,
    REPLACEMENT,
    Values,
    copy_code,
    is_character,
)

_SIMPLE: Final = {
    "\\": "\\",
    "'": "'",
    '"': '"',
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    "0": "\0",
    "\n": "",
}
_STRETCHES: Final = {
    quote: PlainStretch(re.compile(rf'[{quote}"\\\x00-\x1f=]').search) for quote in QUOTES
}
"""Text after `=` must pass the reader, too."""
_GOES_ON: Final = re.compile(r"""\s*(?:[+*%]|[rbfuRBFU]{0,2}['"]|\.\w+\()""").match
"""Matches what continues an expression after a string."""
_LOOK_AHEAD: Final = 16
_AFTER_STRING: Final = (",", ")", "]", "}")
_END_OF_UNICODE: Final = 0x110000
_WIDE: Final = {"x": 2, "u": 4, "U": 8}


class _InnerQuotes:
    """The quotes inside a Python string that are not escaped, in order.

    Models and templates leave out the escapes. The string is certain unless the text has another
    reading: as several strings, as a string with a quote too many, as one that escapes its quotes,
    or as one that runs on into the next argument.
    """

    __slots__ = ("_at_start", "_certain", "_count", "_escaped", "_strict", "quote")

    def __init__(self, quote: str, *, strict: bool) -> None:
        self.quote = quote
        self._strict = strict
        self._count = 0
        self._at_start = False
        self._certain = True
        self._escaped = False
        """There are escaped quotes, too."""

    def look(self, scanner: Scanner, before: str) -> Reader[bool]:
        """Adds the quote that is here, if one is; returns whether the string may go on. `before`:
        the character before, empty at the start of the string."""
        quote = self.quote
        if (yield from scanner.peek(len(quote))) == quote:
            ahead = yield from scanner.peek(len(quote) + _LOOK_AHEAD)
            self._add(before, ahead[len(quote) :])
        return not (self._strict and self._count)

    def look_at_escape(self, scanner: Scanner) -> Reader[None]:
        """Notes the escape that is here, if it is one of a quote."""
        if not self._escaped:
            pair = yield from scanner.peek(2)
            self._escaped = pair[1:] == self.quote[0]

    def _add(self, before: str, after: str) -> None:
        if not self._count:
            self._at_start = not before
            self._certain = len(self.quote) > 1 or _GOES_ON(after) is None
        self._count += 1
        self._certain = self._certain and before != "="

    def are_certain(self, last: str) -> bool:
        """Whether a string that ends after the character `last` has only one reading."""
        at_edge = self._at_start or last == self.quote
        is_unpaired = self._count % 2 == 1 and at_edge
        return not self._count or (self._certain and not is_unpaired and not self._escaped)


class PythonValues(Values):
    """Python literals. An unescaped quote inside a string is text unless a delimiter follows it; in
    a list or a dictionary there must be none."""

    openers: ClassVar[tuple[str, ...]] = ("{", "[", "(")

    def scalar(self, scanner: Scanner, write: Write, live: bool, closer: str) -> Reader[bool]:
        """Copies a string, number or constant; `closer` ends the container."""
        if (yield from scanner.peek()) in QUOTES:
            return (yield from self.string(scanner, write, live, strict=bool(closer)))
        return (yield from super().scalar(scanner, write, live, closer))

    def string(
        self, scanner: Scanner, write: Write, live: bool, *, strict: bool = True
    ) -> Reader[bool]:
        """Copies a quoted string as it streams in; False if its end is not certain. `strict`: every
        quote inside makes it so."""
        if (yield from self._is_quote(scanner)):
            write(quoted(scanner.text[scanner.position]))
            scanner.position += 3
            return True
        quote = yield from self._opening(scanner)
        write('"')
        return (yield from self._inside(scanner, write, live, _InnerQuotes(quote, strict=strict)))

    def _inside(
        self, scanner: Scanner, write: Write, live: bool, inner: _InnerQuotes
    ) -> Reader[bool]:
        """Copies a string from after its opening quote to its end."""
        quote = inner.quote
        plain = PLAIN[quote[0]]
        stretch = _STRETCHES[quote[0]] if live else None
        next_counts = ("", "=", quote[0])
        """Texts after which the next character counts."""
        last = ""
        while True:
            match = plain.match(scanner.text, scanner.position)
            assert match is not None
            text = match[0]
            if text:
                write(text)
                last = text[-1]
                scanner.position = match.end()
            if scanner.position == len(scanner.text):
                if scanner.final:
                    return False
                yield None if last in next_counts else stretch
                continue
            char = scanner.text[scanner.position]
            if char == quote[0] and (yield from self._closes(scanner, quote)):
                scanner.position += len(quote)
                write('"')
                return inner.are_certain(last)
            if not (yield from self._special(scanner, write, inner, last)):
                return False
            last = char

    def _special(
        self, scanner: Scanner, write: Write, inner: _InnerQuotes, last: str
    ) -> Reader[bool]:
        """Copies an escape, a quote that is text, or a control character, each after the character
        `last`; False where the string cannot go on."""
        char = scanner.text[scanner.position]
        if char == "\\":
            yield from inner.look_at_escape(scanner)
            return (yield from self.escape(scanner, write))
        if not (yield from inner.look(scanner, last)):
            return False
        scanner.position += 1
        write(escaped(char))
        return True

    def _is_quote(self, scanner: Scanner) -> Reader[bool]:
        """Whether here is a string of one quote: three before `,` or a bracket."""
        ahead = yield from scanner.peek(4)
        return ahead[:3] == ahead[0] * 3 and ahead[3:] in _AFTER_STRING

    def _opening(self, scanner: Scanner) -> Reader[str]:
        """Passes one quote, or three."""
        ahead = yield from scanner.peek(3)
        quote = ahead if ahead == ahead[0] * 3 else ahead[0]
        scanner.position += len(quote)
        return quote

    def _closes(self, scanner: Scanner, quote: str) -> Reader[bool]:
        """Whether `,`, a bracket or a colon follows, or for one quote the end of the line."""
        blanks = " \t" if len(quote) == 1 else BLANKS
        count = len(quote) + 1
        while True:
            ahead = yield from scanner.peek(count)
            if not ahead.startswith(quote):
                return False
            after = ahead[len(quote) :].lstrip(blanks)
            if after:
                return after[0] in ",)]}:;\r\n"
            if len(ahead) < count or count > 64:
                return True
            count += 1

    def escape(self, scanner: Scanner, write: Write) -> Reader[bool]:
        """Copies a Python escape; an unknown one is a plain backslash."""
        pair = yield from scanner.peek(2)
        if len(pair) < 2:
            return False
        char = pair[1]
        if char in _WIDE:
            digits = _WIDE[char]
            code = (yield from scanner.peek(2 + digits))[2:]
            is_code = len(code) == digits and HEX.match(code)
            if is_code and char == "u":
                return (yield from copy_code(scanner, write, pair + code))
            if is_code and int(code, 16) < _END_OF_UNICODE:
                scanner.position += 2 + digits
                write(escaped(chr(int(code, 16))) if is_character(code) else REPLACEMENT)
                return True
            if scanner.final and len(code) < digits:
                return False
        scanner.position += 2
        write(escaped(_SIMPLE.get(char, pair)))
        return True


class LiteralValues(Values):
    """JSON, or Python literals: a string in single quotes follows Python's rules."""

    def string(self, scanner: Scanner, write: Write, live: bool) -> Reader[bool]:
        """Copies a quoted string, with the escapes of its language."""
        values = PYTHON if scanner.text[scanner.position] == "'" else JSON
        return (yield from values.string(scanner, write, live))


PYTHON: Final = PythonValues()
LITERAL: Final = LiteralValues()


def literal(text: str) -> str | None:
    """Returns the JSON or Python value that all of `text` spells, as JSON; None if it spells no
    value."""
    scanner = Scanner(text)
    scanner.final = True
    written: list[str] = []
    reading = LITERAL.copy(scanner, written.append)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            if not end.value or scanner.rest().strip():
                return None
            return "".join(written)
