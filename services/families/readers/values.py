"""Copies JSON and Python literals as JSON while they come in, and bare text as a value of its type.

At every moment the copy is a prefix of a JSON text, however the input continues. It keeps the model's spelling (blanks,
number forms, key order) and repairs only what has one reading: a trailing comma, a raw control character or a stray
backslash in a string, Python's spelling of constants and quotes.
"""

import re
from collections.abc import Callable
from typing import ClassVar, Final, TypeAlias, TypeVar

from services.families.coercion import coerced, number_text
from services.families.grammar.scanner import Reader, Scanner, Trigger, Write, escaped, quoted
from services.families.grammar.shapes import MORE, MarkerMatch, Markers, Shape

T = TypeVar("T")
_MAX_DEPTH: Final = 256
_MAX_SCALAR: Final = 4096
_SCALAR: Final = re.compile(r"[\w.+-]{0,4096}+")
_CLOSERS: Final = {"{": ("}", "}"), "[": ("]", "]"), "(": (")", "]")}
CONSTANTS: Final = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_HEX: Final = re.compile(r"[0-9a-fA-F]+\Z")
_QUOTES: Final = ('"', "'")


class Values:
    """JSON, read leniently."""

    openers: ClassVar[tuple[str, ...]] = ("{", "[")
    object: ClassVar[Shape] = Shape("{", then=('"', "}", "'"))
    """The unmistakable start of an object."""

    def copy(self, scanner: Scanner, write: Write, live: bool = False) -> Reader[bool]:
        """Copies the value that begins here; True once it has ended.

        False: it is no value (the scanner is where that showed), or the input ended in it. `live`: `write` adds
        to the open block itself, so plain text of a string may go there without passing this reader.
        """
        stack: list[tuple[str, str]] = []
        comma = ""
        due = True
        while True:
            space = yield from scanner.blanks()
            char = (yield from scanner.peek()) or " "
            if due and not (stack and char == stack[-1][0]):
                if stack:
                    write(comma + space)
                    if stack[-1][0] == "}" and not (yield from self.key(scanner, write)):
                        return False
                char = yield from scanner.peek()
                if char in self.openers and len(stack) < _MAX_DEPTH:
                    scanner.position += 1
                    stack.append(_CLOSERS[char])
                    write("{" if char == "{" else "[")
                    comma = ""
                    continue
                if not (yield from self.scalar(scanner, write, live, stack[-1][0] if stack else "")):
                    return False
                due = False
            elif char == "," and not due:
                scanner.position += 1
                comma, due = space + ",", True
                continue
            elif stack and char == stack[-1][0]:
                scanner.position += 1
                write(space + stack.pop()[1])
                due = False
            else:
                return False
            if not stack:
                return True

    def key(self, scanner: Scanner, write: Write) -> Reader[bool]:
        """A key and its colon; leaves the scanner at the value."""
        if (yield from scanner.peek()) not in _QUOTES or not (yield from self.string(scanner, write, False)):
            return False
        return (yield from self.colon(scanner, write))

    def colon(self, scanner: Scanner, write: Write) -> Reader[bool]:
        """A colon with the blanks around it."""
        before = yield from scanner.blanks()
        if (yield from scanner.peek()) != ":":
            return False
        scanner.position += 1
        write(before + ":" + (yield from scanner.blanks()))
        return True

    def scalar(self, scanner: Scanner, write: Write, live: bool, closer: str) -> Reader[bool]:
        """A string, number or constant; `closer` ends what contains it."""
        if (yield from scanner.peek()) in _QUOTES:
            return (yield from self.string(scanner, write, live))
        word = yield from self.word(scanner)
        text = CONSTANTS.get(word) or number_text(word, True)
        cut = scanner.final and scanner.position == len(scanner.text) and word not in CONSTANTS
        if text is None or (cut and text != word):  # half a number at the end of the input is not completed
            scanner.position -= len(word)
            return False
        write(text)
        return True

    def word(self, scanner: Scanner) -> Reader[str]:
        """The characters that can belong to a number or constant."""
        while True:
            found = _SCALAR.match(scanner.text, scanner.position)
            assert found is not None
            if found.end() < len(scanner.text) or scanner.final or len(found[0]) == _MAX_SCALAR:
                scanner.position = found.end()
                return found[0]
            yield

    def string(self, scanner: Scanner, write: Write, live: bool) -> Reader[bool]:
        """A quoted string, copied as it comes."""
        quote = scanner.text[scanner.position]
        scanner.position += 1
        plain, trigger = _PLAIN[quote]
        write('"')
        while True:
            found = plain.match(scanner.text, scanner.position)
            assert found is not None
            if found[0]:
                write(found[0])
                scanner.position = found.end()
            if scanner.position == len(scanner.text):
                if scanner.final:
                    return False
                if live:
                    scanner.trigger, scanner.escape = trigger, False
                yield
                scanner.trigger = None
                continue
            char = scanner.text[scanner.position]
            if char == "\\":
                if not (yield from self.escape(scanner, write)):
                    return False
            elif char == quote and (yield from self.closes(scanner, quote)):
                scanner.position += len(quote)
                write('"')
                return True
            else:
                scanner.position += 1
                write(escaped(char))

    def closes(self, scanner: Scanner, quote: str) -> Reader[bool]:
        """Whether the quote here ends the string."""
        return True
        yield

    def escape(self, scanner: Scanner, write: Write) -> Reader[bool]:
        """Copies a backslash and what it escapes; False if the input ends in it."""
        pair = yield from scanner.peek(2)
        if len(pair) < 2:
            return False
        if pair[1] == "u":
            code = yield from scanner.peek(6)
            if len(code) == 6 and _HEX.match(code, 2):
                pair = code
            elif scanner.final and len(code) < 6:
                return False
        if len(pair) == 6 or pair[1] in '"\\/bfnrt':
            scanner.position += len(pair)
            write(pair)
        elif pair[1] == "'":
            scanner.position += 2
            write("'")
        else:
            scanner.position += 1
            write("\\\\")
        return True


_PLAIN: Final = {
    quote: (re.compile(rf'[^{quote}"\\\x00-\x1f]*+'), re.compile(rf'[{quote}"\\\x00-\x1f]').search) for quote in _QUOTES
}
_SIMPLE: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_WIDE: Final = {"x": 2, "u": 4, "U": 8}


class PythonValues(Values):
    """Python literals. An unescaped quote inside a string is text unless a delimiter follows it."""

    openers: ClassVar[tuple[str, ...]] = ("{", "[", "(")

    def closes(self, scanner: Scanner, quote: str) -> Reader[bool]:
        """Whether `,`, a bracket, a colon or the end of the line follows."""
        count = 2
        while True:
            ahead = yield from scanner.peek(count)
            after = ahead[1:].lstrip(" \t")
            if after:
                return after[0] in ",)]}:;\r\n"
            if len(ahead) < count or count > 64:
                return True
            count += 1

    def escape(self, scanner: Scanner, write: Write) -> Reader[bool]:
        """Copies one of Python's escapes; an unknown one is a backslash."""
        pair = yield from scanner.peek(2)
        if len(pair) < 2:
            return False
        char = pair[1]
        if char in _WIDE:
            code = (yield from scanner.peek(2 + _WIDE[char]))[2:]
            if len(code) == _WIDE[char] and _HEX.match(code) and int(code, 16) < 0x110000:
                scanner.position += 2 + len(code)
                point = int(code, 16)
                write(f"\\u{point:04x}" if char == "u" or 0xD800 <= point < 0xE000 else escaped(chr(point)))
                return True
            if scanner.final and len(code) < _WIDE[char]:
                return False
        scanner.position += 2
        write(escaped(_SIMPLE.get(char, char if char in "\\'\"" else pair)))
        return True


JSON: Final = Values()
PYTHON: Final = PythonValues()


def literal(text: str) -> str | None:
    """A whole object, array or other value in `text`, JSON or Python, as JSON; None if it is none."""
    scanner = Scanner(text)
    scanner.final = True
    written: list[str] = []
    reading = JSON.copy(scanner, written.append)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return "".join(written) if end.value and not scanner.rest().strip() else None


class StringSink:
    """Writes a value as a JSON string while it comes in; one that is `nullable` is held while it may be null."""

    __slots__ = ("_held", "_write")

    def __init__(self, write: Write, *, nullable: bool = False) -> None:
        self._write = write
        self._held: str | None = None
        if nullable:
            self._held = ""
        else:
            write('"')

    @property
    def live(self) -> bool:
        """Nothing is held: plain text may go into the open block without passing the reader."""
        return self._held is None

    def write(self, text: str) -> None:
        """Takes the next piece."""
        if self._held is not None:
            self._held = text = self._held + text
            if "null".startswith(text):
                return
            self._held = None
            self._write('"')
        self._write(escaped(text))

    def end(self) -> None:
        """The value has ended."""
        if self._held is None:
            self._write('"')
        else:
            self._write("null" if self._held == "null" else quoted(self._held))


class HeldSink:
    """Keeps a value until it has ended, and then writes what `convert` makes of it: its type decides."""

    __slots__ = ("_convert", "_parts", "_write")
    live = False

    def __init__(self, write: Write, convert: Callable[[str], str]) -> None:
        self._write, self._convert = write, convert
        self._parts: list[str] = []

    def write(self, text: str) -> None:
        """Takes the next piece."""
        self._parts.append(text)

    def end(self) -> None:
        """The value has ended."""
        self._write(self._convert("".join(self._parts)))


Sink: TypeAlias = StringSink | HeldSink


def copy_text(
    scanner: Scanner,
    markers: Markers[T],
    ends: Callable[[MarkerMatch[T]], bool],
    sink: Sink,
    trigger: Trigger | None,
    *,
    frame: bool = False,
) -> Reader[MarkerMatch[T] | None]:
    """Writes text up to the first marker that `ends` it, and stops in front of that marker; None at the input's end.

    `trigger` finds text that must pass this reader; None: all must. `frame`: a line break on each side is left out.
    """
    held, first = "", frame
    while True:
        text, look = scanner.text, scanner.position
        while True:
            at = markers.find(text, look, scanner.final)
            found = markers.at(text, at, scanner.final) if at >= 0 else None
            if at < 0 or found is MORE or (isinstance(found, MarkerMatch) and ends(found)):
                break
            look = at + 1
        piece = text[scanner.position : at if at >= 0 else len(text)]
        scanner.position += len(piece)
        if piece and first:
            first = False
            piece = piece.removeprefix("\n")
        if piece:
            piece = held + piece
            held = "\n" if frame and piece[-1] == "\n" else ""
            sink.write(piece.removesuffix(held))
        if isinstance(found, MarkerMatch):
            return found
        if scanner.final:
            return None
        if trigger is not None and at < 0 and not held and not first and sink.live:
            scanner.trigger, scanner.escape = trigger, True
        yield
        scanner.trigger = None


def typed(types: frozenset[str]) -> Callable[[str], str]:
    """Converts bare text to the first of `types` that it fits."""
    return lambda text: coerced(text, types, literal)


def json_or_string(text: str) -> str:
    """JSON where the text is JSON, else a string."""
    return literal(text) or quoted(text)


def json_string_or_string(text: str) -> str:
    """The text as a JSON string, unless it is one already."""
    value = literal(text)
    return value if value is not None and value[0] == '"' else quoted(text)
