"""Writes bare text, up to the marker that ends it, as a JSON value of the type that the tool's
schema gives it.

Strings stream. If a schema admits several types, the first of these that fits is taken: null,
integer, number, boolean, object, array, string. Values are never guessed: one that fits none of
them is a string, and so is every value of a parameter that is a string in the schema, or missing
there.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias, TypeVar

from services.families.grammar.scanner import Reader, Scanner, Trigger, Write, escaped, quoted
from services.families.grammar.shapes import MORE, MarkerMatch, Markers
from services.families.readers.values import literal, number_text

T = TypeVar("T")
_BOOLEANS: Final = {"true": "true", "false": "false", "1": "true", "0": "false"}


class StringSink:
    """Streams a value as a JSON string; a `nullable` one is held as long as it may be null."""

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
        """Whether nothing is held, so that plain text may go into the open block without passing
        the reader."""
        return self._held is None

    def write(self, text: str) -> None:
        """Adds the next piece."""
        if self._held is not None:
            self._held = text = self._held + text
            if "null".startswith(text):
                return
            self._held = None
            self._write('"')
        self._write(escaped(text))

    def end(self) -> None:
        """Ends the value."""
        if self._held is None:
            self._write('"')
        else:
            self._write("null" if self._held == "null" else quoted(self._held))


class HeldSink:
    """Collects a value, and writes it at its end as `convert` returns it."""

    __slots__ = ("_convert", "_parts", "_typed", "_write")
    live = False

    def __init__(self, write: Write, convert: Callable[[str], str], *, typed: bool = False) -> None:
        self._write, self._convert, self._typed = write, convert, typed
        self._parts: list[str] = []

    @property
    def whole(self) -> bool:
        """Whether the text so far is a value of a type that admits no other text; only if it is
        `typed`."""
        return self._typed and self._convert("".join(self._parts))[0] != '"'

    def write(self, text: str) -> None:
        """Adds the next piece."""
        self._parts.append(text)

    def end(self) -> None:
        """Ends the value."""
        self._write(self._convert("".join(self._parts)))


Sink: TypeAlias = StringSink | HeldSink


class Tag(Enum):
    """A tag in or between values."""

    OPEN = "opens a parameter"
    CLOSE = "closes it"
    END = "closes a call"
    CLOSED = "closes a parameter where the call cannot go on"
    LAST = "closes a call, and nothing but what closes more follows"
    CALL = "opens a call"
    JSON = "holds all arguments as JSON"
    BEYOND = "belongs to what comes after the call"
    BROKEN = "opens a parameter, but its key cannot be read"


class Shown:
    """Follows the calls that a value shows as text: their tags do not end it."""

    __slots__ = ("_keys", "seen")

    def __init__(self) -> None:
        self.seen = False
        """There was one."""
        self._keys: list[str | None] = []
        """The open parameter of each call, the inner calls last; None between two of them."""

    @property
    def between(self) -> bool:
        """Whether such a call is open, and no parameter of it."""
        return bool(self._keys) and self._keys[-1] is None

    def takes(self, tag: Tag, key: str = "") -> bool:
        """Takes the next tag, of parameter `key` where tags have keys. Returns whether it belongs
        to such a call."""
        if not self.between:
            if tag is Tag.CALL:
                self.seen = True
                self._keys.append(None)
            elif self._keys and tag in (Tag.CLOSE, Tag.CLOSED) and key == self._keys[-1]:
                self._keys[-1] = None
            return tag is Tag.CALL or bool(self._keys)
        if tag is Tag.OPEN:
            self._keys[-1] = key
        elif tag in (Tag.END, Tag.LAST):
            self._keys.pop()
        return True


def copy_text(
    scanner: Scanner,
    markers: Markers[T],
    ends: Callable[[MarkerMatch[T], bool], bool],
    sink: Sink,
    trigger: Trigger | None,
    *,
    frame: bool = False,
) -> Reader[MarkerMatch[T] | None]:
    """Writes text up to the first marker that `ends` it, and stops in front of that marker; None at
    the input's end.

    `ends` gets each marker once, after the text before it, and whether a `frame` admits an end
    there. `trigger` finds text that must pass this reader; None: all must. `frame`: a line break on
    each side is left out.
    """
    held, first, look = "", frame, scanner.position
    while True:
        text = scanner.text
        at = markers.find(text, look, scanner.final)
        found = markers.at(text, at, scanner.final) if at >= 0 else None
        piece = text[scanner.position : at if at >= 0 else len(text)]
        scanner.position += len(piece)
        if piece and first:
            first = False
            piece = piece.removeprefix("\n")
        if piece:
            piece = held + piece
            held = "\n" if frame and piece[-1] == "\n" else ""
            sink.write(piece.removesuffix(held))
        if isinstance(found, MarkerMatch) and ends(found, bool(held) or first or not frame):
            return found
        if at >= 0 and found is not MORE:
            look = at + 1
            continue
        if scanner.final:
            return None
        if trigger is not None and at < 0 and not held and not first and sink.live:
            scanner.trigger, scanner.escape = trigger, True
        yield
        scanner.trigger, look = None, scanner.position


def coerced(text: str, types: frozenset[str]) -> str:
    """Returns `text` as JSON of the first of `types` that fits, else as a JSON string."""
    bare = text.strip()
    if "null" in types and (bare == "null" or (bare == "None" and "string" not in types)):
        return "null"
    if ("integer" in types or "number" in types) and (
        number := number_text(bare, "number" in types)
    ):
        return number
    if "boolean" in types and (boolean := _BOOLEANS.get(bare.lower())):
        return boolean
    if ("object" in types and bare[:1] == "{") or ("array" in types and bare[:1] == "["):
        container = literal(bare)
        if container is not None:
            return container
    return quoted(text)


def json_or_string(text: str) -> str:
    """Returns `text` as JSON if it is a JSON or Python literal, else as a JSON string."""
    return literal(text) or quoted(text)


def json_string_or_string(text: str) -> str:
    """Returns `text` as a JSON string, unless it is one already."""
    value = literal(text)
    return value if value is not None and value[0] == '"' else quoted(text)
