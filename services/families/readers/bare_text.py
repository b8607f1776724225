"""Writes bare text, up to the marker that ends it, as a JSON value of the type that the tool's schema gives it.

Strings are written while they come in. Where a schema admits several types, the first of these that fits is taken:
null, integer, number, boolean, object, array, string. Values are never guessed: one that fits none of them stays a
string, as does every value of a parameter that is a string in the schema, or not in it.
"""

from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from services.families.grammar.scanner import Reader, Scanner, Trigger, Write, escaped, quoted
from services.families.grammar.shapes import MORE, MarkerMatch, Markers
from services.families.readers.values import literal, number_text

T = TypeVar("T")
_BOOLEANS: Final = {"true": "true", "false": "false", "1": "true", "0": "false"}


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


def coerced(text: str, types: frozenset[str]) -> str:
    """`text` as JSON of the first of `types` that it fits, else as a JSON string."""
    bare = text.strip()
    if "null" in types and (bare == "null" or (bare == "None" and "string" not in types)):
        return "null"
    if ("integer" in types or "number" in types) and (number := number_text(bare, "number" in types)):
        return number
    if "boolean" in types and (boolean := _BOOLEANS.get(bare.lower())):
        return boolean
    if ("object" in types and bare[:1] == "{") or ("array" in types and bare[:1] == "["):
        container = literal(bare)
        if container is not None:
            return container
    return quoted(text)


def json_or_string(text: str) -> str:
    """JSON where the text is JSON, else a string."""
    return literal(text) or quoted(text)


def json_string_or_string(text: str) -> str:
    """The text as a JSON string, unless it is one already."""
    value = literal(text)
    return value if value is not None and value[0] == '"' else quoted(text)
