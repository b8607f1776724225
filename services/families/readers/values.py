"""Copies JSON and Python literals as JSON, as they stream in.

At every moment the copy is a prefix of a JSON text, however the input continues. It keeps the
model's spelling (blanks, number forms, key order) and repairs only unambiguous errors: a trailing
comma, a raw control character or a stray backslash in a string, half of a surrogate pair, Python's
spelling of constants and quotes.
"""

import re
from decimal import Decimal
from json import loads
from typing import ClassVar, Final

from services.families.grammar.scanner import Reader, Scanner, Trigger, Write, escaped, quoted
from services.families.grammar.shapes import BLANKS, Shape

_MAX_DEPTH: Final = 256
_MAX_SCALAR: Final = 4096
_MAX_DIGITS: Final = 309
"""Digits of a whole number that has an exponent or a fraction: those of the largest numbers of most
languages."""
_MAX_EXPONENT: Final = len("e+308")
_SCALAR: Final = re.compile(r"[\w.+-]{0,4096}+")
_CONTAINERS: Final = {"{": ("}", "{", "}"), "[": ("]", "[", "]"), "(": (")", "[", "]")}
"""What closes a container, and what is written for opener and closer, by its opener."""
CONSTANTS: Final = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
}
_HEX: Final = re.compile(r"[0-9a-fA-F]+\Z")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,4096}\Z")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z")
_LOOSE_NUMBER: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?((?:[eE][+-]?[0-9]+)?)\Z")
_QUOTES: Final = ('"', "'")


def drop(_: str) -> None:
    """Drops text."""


class _OpenContainer:
    """An object or a list that is being copied: what closes it, what is written for that, and the
    keys so far."""

    __slots__ = ("closer", "keys", "written")

    def __init__(self, closer: str, written: str) -> None:
        self.closer = closer
        self.written = written
        self.keys: set[str] = set()


class _Copy:
    """A value that is being copied."""

    __slots__ = ("comma", "containers", "has_duplicate_key", "item_due", "live", "write")

    def __init__(self, write: Write, live: bool) -> None:
        self.write = write
        self.live = live
        self.item_due = True
        """An item may come next, and no comma."""
        self.comma = ""
        """The comma before the next item, which is written with that."""
        self.has_duplicate_key = False
        """From the second key on, nothing is written."""
        self.containers = [_OpenContainer("", "")]
        """The open containers, after one that stands for the place of the value."""

    def enter(self, opener: str) -> None:
        """Opens a container."""
        closer, written_opener, written_closer = _CONTAINERS[opener]
        self.containers.append(_OpenContainer(closer, written_closer))
        self.write(written_opener)
        self.comma = ""

    def leave(self, space: str) -> None:
        """Closes the innermost container, after `space`."""
        self.write(space + self.containers.pop().written)
        self.item_due = False

    def add_key(self, spelled: str) -> None:
        """Writes a key with its colon."""
        keys = self.containers[-1].keys
        key = loads(spelled.rpartition(":")[0])
        if key in keys:
            self.has_duplicate_key = True
            self.live = False
            self.write = drop
        keys.add(key)
        self.write(spelled)


class Values:
    """JSON, read leniently."""

    find_stray_end: Trigger | None = None
    """Finds the end of a call at the end of text, if strings have no escapes."""
    openers: ClassVar[tuple[str, ...]] = ("{", "[")
    object: ClassVar[Shape] = Shape("{", then=('"', "}", "'"))
    """The unmistakable start of an object."""

    def copy(self, scanner: Scanner, write: Write, live: bool = False) -> Reader[bool]:
        """Copies the value that begins here; returns True at its end.

        False: the text is not a value (the scanner stays where that showed), an object in it has a
        key twice (the scanner passes it), or the input ended in it. `live`: `write` adds to the
        open block itself, so plain text of a string may go there without passing this reader.
        """
        copied = _Copy(write, live)
        while True:
            space = yield from scanner.blanks()
            char = (yield from scanner.peek()) or " "
            if char == copied.containers[-1].closer:
                scanner.position += 1
                copied.leave(space)
            elif copied.item_due:
                if not (yield from self._item(scanner, copied, space)):
                    return False
            elif char == ",":
                scanner.position += 1
                copied.comma = space + ","
                copied.item_due = True
            else:
                return False
            if len(copied.containers) == 1:
                return not copied.has_duplicate_key

    def _item(self, scanner: Scanner, copied: "_Copy", space: str) -> Reader[bool]:
        """Copies an item after `space`: a whole scalar, or the opener of a container, which is then
        the innermost one."""
        if not (yield from self._lead(scanner, copied, space)):
            return False
        opener = yield from scanner.peek()
        if opener in self.openers and len(copied.containers) <= _MAX_DEPTH:
            scanner.position += 1
            copied.enter(opener)
            return True
        copied.item_due = False
        closer = copied.containers[-1].closer
        return (yield from self.scalar(scanner, copied.write, copied.live, closer))

    def _lead(self, scanner: Scanner, copied: "_Copy", space: str) -> Reader[bool]:
        """Copies what precedes an item in a container, after `space`: the comma, and in an object
        the key."""
        closer = copied.containers[-1].closer
        if closer:
            copied.write(copied.comma + space)
        if closer == "}":
            spelled: list[str] = []
            if not (yield from self.key(scanner, spelled.append)):
                return False
            copied.add_key("".join(spelled))
        return True

    def key(self, scanner: Scanner, write: Write) -> Reader[bool]:
        """Copies a key and its colon; leaves the scanner at the value."""
        if (yield from scanner.peek()) not in _QUOTES or not (
            yield from self.string(scanner, write, False)
        ):
            return False
        return (yield from self.colon(scanner, write))

    def colon(self, scanner: Scanner, write: Write) -> Reader[bool]:
        """Copies a colon with the blanks around it."""
        before = yield from scanner.blanks()
        if (yield from scanner.peek()) != ":":
            return False
        scanner.position += 1
        write(before + ":" + (yield from scanner.blanks()))
        return True

    def scalar(self, scanner: Scanner, write: Write, live: bool, closer: str) -> Reader[bool]:
        """Copies a string, number or constant; `closer` ends the container."""
        if (yield from scanner.peek()) in _QUOTES:
            return (yield from self.string(scanner, write, live))
        word = yield from self.word(scanner)
        text = CONSTANTS.get(word) or number_text(word, True)
        is_last = scanner.final and scanner.position == len(scanner.text)
        is_half = is_last and text != word and word not in CONSTANTS
        if text is None or is_half:
            scanner.position -= len(word)
            return False
        write(text)
        return True

    def word(self, scanner: Scanner) -> Reader[str]:
        """Passes the characters that can belong to a number or constant."""
        length = 0
        while True:
            match = _SCALAR.match(scanner.text, scanner.position + length)
            assert match is not None
            length = min(length + len(match[0]), _MAX_SCALAR)
            end = scanner.position + length
            if end < len(scanner.text) or scanner.final or length == _MAX_SCALAR:
                word = scanner.text[scanner.position : end]
                scanner.position = end
                return word
            yield

    def string(self, scanner: Scanner, write: Write, live: bool) -> Reader[bool]:
        """Copies a quoted string as it streams in."""
        quote = scanner.text[scanner.position]
        scanner.position += 1
        plain, trigger = _PLAIN[quote]
        write('"')
        while True:
            match = plain.match(scanner.text, scanner.position)
            assert match is not None
            text = match[0]
            if text:
                write(text)
                scanner.position = match.end()
            if scanner.position == len(scanner.text):
                if scanner.final:
                    return False
                if live:
                    scanner.trigger = trigger
                    scanner.escape = False
                yield
                scanner.trigger = None
                continue
            char = scanner.text[scanner.position]
            if char == "\\":
                if not (yield from self.escape(scanner, write)):
                    return False
            elif char == quote:
                scanner.position += 1
                write('"')
                return True
            else:
                scanner.position += 1
                write(escaped(char))

    def escape(self, scanner: Scanner, write: Write) -> Reader[bool]:
        """Copies a backslash and what it escapes; False if the input ends in it."""
        pair = yield from scanner.peek(2)
        if len(pair) < 2:
            return False
        if pair[1] == "u":
            code = yield from scanner.peek(6)
            if len(code) == 6 and _HEX.match(code, 2):
                return (yield from _copy_code(scanner, write, code))
            if scanner.final and len(code) < 6:
                return False
        if pair[1] in '"\\/bfnrt':
            scanner.position += 2
            write(pair)
        elif pair[1] == "'":
            scanner.position += 2
            write("'")
        else:
            scanner.position += 1
            write("\\\\")
        return True


_PLAIN: Final = {
    quote: (re.compile(rf'[^{quote}"\\\x00-\x1f]*+'), re.compile(rf'[{quote}"\\\x00-\x1f]').search)
    for quote in _QUOTES
}
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
_PLAIN_PYTHON: Final = {
    quote: (plain, re.compile(rf'[{quote}"\\\x00-\x1f=]').search)
    for quote, (plain, _) in _PLAIN.items()
}
"""Text after `=` must pass the reader, too."""
_GOES_ON: Final = re.compile(r"""\s*(?:[+*%]|[rbfuRBFU]{0,2}['"]|\.\w+\()""").match
"""Matches what continues an expression after a string."""
_LOOK_AHEAD: Final = 16
_AFTER_STRING: Final = (",", ")", "]", "}")
_END_OF_UNICODE: Final = 0x110000
_REPLACEMENT: Final = "\\ufffd"
_FIRST_HALVES: Final = ("d8", "d9", "da", "db")
_SECOND_HALVES: Final = ("dc", "dd", "de", "df")
_WIDE: Final = {"x": 2, "u": 4, "U": 8}


class _InnerQuotes:
    """The quotes inside a Python string that are not escaped, in order.

    Models and templates leave out the escapes. The string is certain unless the text has another
    reading: as several strings, as a string with a quote too many, as one that escapes its quotes,
    or as one that runs on into the next argument.
    """

    __slots__ = ("_at_start", "_certain", "_count", "_quote", "escaped")

    def __init__(self, quote: str) -> None:
        self._quote = quote
        self._count = 0
        self._at_start = False
        self._certain = True
        self.escaped = False
        """There are escaped quotes, too."""

    def add(self, before: str, after: str) -> None:
        """Adds a quote between the character `before`, empty at the start of the string, and the
        text `after`."""
        if not self._count:
            self._at_start = not before
            self._certain = len(self._quote) > 1 or _GOES_ON(after) is None
        self._count += 1
        self._certain = self._certain and before != "="

    def __bool__(self) -> bool:
        return bool(self._count)

    def are_certain(self, last: str) -> bool:
        """Whether a string that ends after the character `last` has only one reading."""
        at_edge = self._at_start or last == self._quote
        is_unpaired = self._count % 2 == 1 and at_edge
        return not self._count or (self._certain and not is_unpaired and not self.escaped)


class PythonValues(Values):
    """Python literals. An unescaped quote inside a string is text unless a delimiter follows it; in
    a list or a dictionary there must be none."""

    openers: ClassVar[tuple[str, ...]] = ("{", "[", "(")

    def scalar(self, scanner: Scanner, write: Write, live: bool, closer: str) -> Reader[bool]:
        """Copies a string, number or constant; `closer` ends the container."""
        if (yield from scanner.peek()) in _QUOTES:
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
        plain, trigger = _PLAIN_PYTHON[quote[0]]
        inner = _InnerQuotes(quote)
        next_counts = ("", "=", quote[0])
        """Texts after which the next character counts."""
        last = ""
        write('"')
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
                if live and last not in next_counts:
                    scanner.trigger = trigger
                    scanner.escape = False
                yield
                scanner.trigger = None
                continue
            char = scanner.text[scanner.position]
            if char == "\\":
                inner.escaped = inner.escaped or (yield from scanner.peek(2))[1:] == quote[0]
                if not (yield from self.escape(scanner, write)):
                    return False
            elif char == quote[0] and (yield from self._closes(scanner, quote)):
                scanner.position += len(quote)
                write('"')
                return inner.are_certain(last)
            else:
                if (yield from scanner.peek(len(quote))) == quote:
                    after = yield from scanner.peek(len(quote) + _LOOK_AHEAD)
                    inner.add(last, after[len(quote) :])
                if strict and inner:
                    return False
                scanner.position += 1
                write(escaped(char))
            last = char

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
            is_code = len(code) == digits and _HEX.match(code)
            if is_code and char == "u":
                return (yield from _copy_code(scanner, write, pair + code))
            if is_code and int(code, 16) < _END_OF_UNICODE:
                scanner.position += 2 + digits
                write(escaped(chr(int(code, 16))) if _is_character(code) else _REPLACEMENT)
                return True
            if scanner.final and len(code) < digits:
                return False
        scanner.position += 2
        write(escaped(_SIMPLE.get(char, pair)))
        return True


def _copy_code(scanner: Scanner, write: Write, code: str) -> Reader[bool]:
    """Copies `\\uXXXX`, which is here, and the second half of a pair with the first; False if the
    input ends between them. Half of a pair alone is U+FFFD: it is not a character, and many
    JSON readers refuse it."""
    scanner.position += len(code)
    if code[2:4].lower() in _FIRST_HALVES:
        ahead = yield from scanner.peek()
        if ahead == "\\":
            ahead = yield from scanner.peek(2)
        if ahead == "\\u":
            ahead = yield from scanner.peek(6)
        if scanner.final and len(ahead) < 6 and "\\u".startswith(ahead[:2]):
            return False
        if ahead[2:4].lower() in _SECOND_HALVES and _HEX.match(ahead, 2):
            scanner.position += 6
            write(code + ahead)
            return True
    write(code if _is_character(code[2:]) else _REPLACEMENT)
    return True


def _is_character(code: str) -> bool:
    return not 0xD800 <= int(code, 16) < 0xE000


class LiteralValues(Values):
    """JSON, or Python literals: a string in single quotes follows Python's rules."""

    def string(self, scanner: Scanner, write: Write, live: bool) -> Reader[bool]:
        """Copies a quoted string, with the escapes of its language."""
        values = PYTHON if scanner.text[scanner.position] == "'" else JSON
        return (yield from values.string(scanner, write, live))


def number_text(text: str, fraction: bool) -> str | None:
    """Returns `text` as a JSON number, unchanged if it is one; None if it is none. Without
    `fraction` it must be whole, and is written as an integer."""
    sign = "-" if text[:1] == "-" else ""
    if _INTEGER.match(text):
        return sign + (text.lstrip("+-").lstrip("0") or "0")
    loose = _LOOSE_NUMBER.match(text)
    if loose is None or not (loose[2] or loose[3]):
        return None
    if not fraction:
        return _whole(text, exponent=loose[4])
    if _NUMBER.match(text):
        return text
    whole = loose[2].lstrip("0") or "0"
    return f"{sign}{whole}.{loose[3] or '0'}{loose[4]}"


def _whole(text: str, *, exponent: str) -> str | None:
    """A number as an integer; None if it has a fraction or too many digits."""
    if len(exponent) > _MAX_EXPONENT:
        return None
    number = Decimal(text)
    if number.adjusted() >= _MAX_DIGITS or number != number.to_integral_value():
        return None
    return str(int(number))


JSON: Final = Values()
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
