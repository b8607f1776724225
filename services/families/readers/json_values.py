"""Copies JSON as it streams in.

At every moment the copy is a prefix of a JSON text, however the input continues. It keeps the
model's spelling (blanks, number forms, key order) and repairs only unambiguous errors: a trailing
comma, a raw control character or a stray backslash in a string, half of a surrogate pair, Python's
spelling of constants and quotes.
"""

import re
from json import loads
from typing import ClassVar, Final

from services.families.grammar.scanner import PlainStretch, Reader, Scanner, Search, Write, escaped
from services.families.grammar.shapes import Shape
from services.families.readers.numbers import number_text

_MAX_DEPTH: Final = 256
_MAX_SCALAR: Final = 4096
_SCALAR: Final = re.compile(r"[\w.+-]{0,4096}+")
_CONTAINERS: Final = {"{": ("}", "{", "}"), "[": ("]", "[", "]"), "(": (")", "[", "]")}
"""For each opener of a container: its closer, and what is written for opener and closer."""
CONSTANTS: Final = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
}
HEX: Final = re.compile(r"[0-9a-fA-F]+\Z")
QUOTES: Final = ('"', "'")
PLAIN: Final = {quote: re.compile(rf'[^{quote}"\\\x00-\x1f]*+') for quote in QUOTES}
_STRETCHES: Final = {
    quote: PlainStretch(re.compile(rf'[{quote}"\\\x00-\x1f]').search) for quote in QUOTES
}
_FIRST_HALVES: Final = ("d8", "d9", "da", "db")
_SECOND_HALVES: Final = ("dc", "dd", "de", "df")
REPLACEMENT: Final = "\\ufffd"


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

    find_stray_end: Search | None = None
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
        if (yield from scanner.peek()) not in QUOTES or not (
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
        if (yield from scanner.peek()) in QUOTES:
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
            yield None

    def string(self, scanner: Scanner, write: Write, live: bool) -> Reader[bool]:
        """Copies a quoted string as it streams in."""
        quote = scanner.text[scanner.position]
        scanner.position += 1
        plain = PLAIN[quote]
        stretch = _STRETCHES[quote] if live else None
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
                yield stretch
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
            if len(code) == 6 and HEX.match(code, 2):
                return (yield from copy_code(scanner, write, code))
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


def copy_code(scanner: Scanner, write: Write, code: str) -> Reader[bool]:
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
        if ahead[2:4].lower() in _SECOND_HALVES and HEX.match(ahead, 2):
            scanner.position += 6
            write(code + ahead)
            return True
    write(code if is_character(code[2:]) else REPLACEMENT)
    return True


def is_character(code: str) -> bool:
    """Whether the hexadecimal `code` is that of a character, and not half of a surrogate pair."""
    return not 0xD800 <= int(code, 16) < 0xE000


JSON: Final = Values()
