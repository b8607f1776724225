"""Reads and writes Gemma's argument objects: `{key:<|"|>text<|"|>,n:42,l:[…]}`, with a token for
quotes.

The string token also stands for a quote inside a string: it closes a string only if the grammar
continues after it. Then quotes come in pairs, and no key follows one; else a token may be missing,
and the string is not certain. A call that a string shows is text, with its tokens. JSON's quotes
and strings without their opening token are read, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from json import dumps
from re import compile, escape
from typing import Any, ClassVar, Final

from services.families.grammar.scanner import PlainStretch, Reader, Scanner, Write, quoted
from services.families.grammar.shapes import END, MarkerMatch, Markers, Shape
from services.families.readers.bare_text import copy_text
from services.families.readers.json_values import CONSTANTS, Values
from services.families.readers.numbers import number_text
from services.families.readers.value_sinks import StringSink
from services.families.readers.value_tags import QuotedCalls, Tag

_BARE: Final = compile(r"[^,}\]<]*+")
_DAMAGED: Final = compile(r"""\A,|[:=](?! )|[{[<>|"']""").search
"""Finds what a text without its opening token cannot have: a piece of a token or key, a bracket."""
_KEY: Final = compile(r"(?:\A\S?|[,>])\s*\w+\s*[:=]").search
_LOOK_AHEAD: Final = 32
_STRETCH: Final = PlainStretch(compile("<").search, escape=True)


class GemmaValues(Values):
    """Values with `token` on both sides of a string; `closer` ends a call, which the shape `opener`
    opened."""

    object: ClassVar[Shape] = Shape("{")

    def __init__(self, token: str, closer: str, opener: str = "") -> None:
        self.find_stray_end = compile(rf"\}}\s*{escape(closer)}(?:\s|<[^<>]*>)*\Z").search
        self._token = Shape(token)
        calls = [(Shape(opener, then=("{",)), Tag.CALL_START)] if opener else []
        self._inside = Markers(
            [
                (Shape(token, then=(",", "}", "]", END)), Tag.VALUE_END),
                (Shape(token), Tag.VALUE_START),
                *calls,
                (Shape(closer, then=(END,)), Tag.FINAL_CALL_END),
                (Shape(closer), Tag.CALL_END),
            ]
        )
        quoted_keys = [*_keys(token, "key"), *_keys('"', "key")]
        keys = [*quoted_keys, *_keys("", "words")]
        narrow_keys = [*quoted_keys, *_keys("", "bare")]
        self._keys = tuple(map(Shape, keys))
        self._after_scalar = tuple(Shape(",{ws}" + key) for key in keys)
        self._after_text = tuple(Shape(",{ws}" + key) for key in narrow_keys)

    def key(self, scanner: Scanner, write: Write) -> Reader[bool]:
        """Copies a key and its colon."""
        match = yield from scanner.match(*self._keys)
        if match is None:
            return False
        groups = match[1].groupdict()
        key = groups.get("key") or groups["words"].strip()
        space = yield from scanner.blanks()
        write(quoted(key) + ":" + space)
        return True

    def scalar(self, scanner: Scanner, write: Write, live: bool, closer: str) -> Reader[bool]:
        """Copies a string between tokens or quotes, a number or constant, or bare text."""
        if (yield from scanner.match(self._token)) is not None:
            return (yield from self._string(scanner, write, live, strict=closer == "]"))
        if (yield from scanner.peek()) in ('"', "'"):
            return (yield from self.string(scanner, write, live))
        return (yield from self._bare(scanner, write, closer))

    def _string(self, scanner: Scanner, write: Write, live: bool, *, strict: bool) -> Reader[bool]:
        """Copies a string up to its closing token; False if it is not certain that this is its
        end. `strict`: no token inside is a quote."""
        inner_quotes = 0
        certain = True
        sink = StringSink(write)
        quoted_calls = QuotedCalls()

        def ends(marker: MarkerMatch[Tag], _: bool) -> bool:
            tag = marker.meaning
            if tag is Tag.VALUE_END and quoted_calls.between:
                tag = Tag.VALUE_START
            return not quoted_calls.add(tag) and tag is not Tag.CALL_END

        stretch = _STRETCH if live else None
        while True:
            marker = yield from copy_text(scanner, self._inside, ends, sink, stretch)
            if marker is None or marker.meaning is Tag.FINAL_CALL_END:
                return False
            scanner.position = marker.match.end()
            if marker.meaning is Tag.VALUE_END:
                sink.end()
                return certain and inner_quotes % 2 == 0
            after = yield from scanner.peek(_LOOK_AHEAD)
            inner_quotes += 1
            certain = certain and not strict and not _KEY(after.partition(self._token.head)[0])
            sink.write('"')

    def _bare(self, scanner: Scanner, write: Write, closer: str) -> Reader[bool]:
        """Copies a value without an opening token: a number, a constant, or text."""
        text = yield from _to_delimiter(scanner)
        word = text.strip()
        scalar = CONSTANTS.get(word) or number_text(word, True)
        if scalar is None:
            return (yield from self._unopened_text(scanner, write, closer, text))
        if (yield from scanner.match(self._token)) is not None:
            write(quoted(text))
            return False
        if not (yield from self._ends(scanner, closer, self._after_scalar)):
            return False
        write(scalar)
        return (yield from scanner.peek()) != "<"

    def _unopened_text(
        self, scanner: Scanner, write: Write, closer: str, text: str
    ) -> Reader[bool]:
        """Copies text without its opening token, of which the scanner has passed `text`: up to a
        closing one, or to the end of the value. False if it is not certain that this is all."""
        parts = [text]
        while not (yield from self._ends(scanner, closer, self._after_text)):
            if not (yield from scanner.peek()):
                return False
            scanner.position += len(",")
            parts.append("," + (yield from _to_delimiter(scanner)))
        whole = "".join(parts)
        if (yield from scanner.match(self._token)) is not None:
            write(quoted(whole))
            return not _DAMAGED(whole)
        bare = whole.strip()
        write(quoted(bare))
        is_cut = (yield from scanner.peek()) == "<"
        return bool(bare) and not is_cut and not _DAMAGED(bare)

    def _ends(self, scanner: Scanner, closer: str, following: tuple[Shape, ...]) -> Reader[bool]:
        """Whether a value without an opening token ends at this delimiter. A comma ends it in a
        list, and in an object before the next key: one of `following`."""
        delimiter = yield from scanner.peek()
        if delimiter != "," or closer == "]":
            return delimiter != ""
        return (yield from scanner.follows(*following))


def _to_delimiter(scanner: Scanner) -> Reader[str]:
    """Passes the text up to one of `,}]<`, or to the end of the input."""
    parts: list[str] = []
    while True:
        piece = _BARE.match(scanner.text, scanner.position)
        assert piece is not None
        parts.append(piece[0])
        scanner.position = piece.end()
        if scanner.position < len(scanner.text) or scanner.final:
            return "".join(parts)
        yield None


def _keys(quote: str, hole: str) -> list[str]:
    """The shapes of keys with one kind of quotes; the model sometimes writes `=` for the colon."""
    return [f"{quote}{{{hole}}}{quote}{{ws}}{colon}" for colon in ":="]


@dataclass(frozen=True)
class GemmaStyle:
    """Writes argument objects, with `token` for quotes."""

    token: str

    def __call__(self, value: Any) -> str:
        """Writes an object, or a value in it."""
        if isinstance(value, str):
            return self.token + value + self.token
        if isinstance(value, Mapping):
            members = ",".join(f"{key}:{self(item)}" for key, item in value.items())
            return f"{{{members}}}"
        if isinstance(value, list):
            items = ",".join(map(self, value))
            return f"[{items}]"
        return dumps(value)
