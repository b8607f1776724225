"""Writes bare text, up to the marker that ends it, as a JSON value of the type that the tool's
schema gives it.

Strings stream. If a schema admits several types, the first of these that fits is taken: null,
integer, number, boolean, object, array, string. Values are never guessed: one that fits none of
them is a string, and so is every value of a parameter that is a string in the schema, or missing
there.
"""

from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from re import compile
from typing import Any, Final, TypeAlias, TypeVar

from services.families.grammar.scanner import PlainStretch, Reader, Scanner, Write, escaped, quoted
from services.families.grammar.shapes import MORE, MarkerMatch, Markers
from services.families.readers.numbers import number_text
from services.families.readers.python_values import literal

T = TypeVar("T")
_OPENERS: Final = ("{", "[")
_CLOSERS: Final = ("}", "]")
_TAG_MARK: Final = compile("[<｜]").search
_NULLS: Final = ("null", "None")
_BOOLEANS: Final = {"true": "true", "false": "false", "1": "true", "0": "false"}


class StringSink:
    """Streams a value as a JSON string; a `nullable` one is buffered as long as it may be null."""

    __slots__ = ("_buffered", "_write")
    may_end = True
    is_damaged = False

    def __init__(self, write: Write, *, nullable: bool = False) -> None:
        self._write = write
        self._buffered: str | None = None
        if nullable:
            self._buffered = ""
        else:
            write('"')

    @property
    def live(self) -> bool:
        """Whether nothing is buffered, so that plain text may go into the open block without
        passing the reader."""
        return self._buffered is None

    def write(self, text: str) -> None:
        """Adds the next piece."""
        if self._buffered is not None:
            text = self._buffered + text
            if any(null.startswith(text) for null in _NULLS):
                self._buffered = text
                return
            self._buffered = None
            self._write('"')
        self._write(escaped(text))

    def end(self) -> None:
        """Ends the value."""
        if self._buffered is None:
            self._write('"')
        elif self._buffered in _NULLS:
            self._write("null")
        else:
            self._write(quoted(self._buffered))


class BufferedSink:
    """Collects a value, and writes it at its end as `convert` returns it."""

    __slots__ = ("_convert", "_parts", "_typed", "_write", "is_damaged")
    live = False
    may_end = True

    def __init__(self, write: Write, convert: Callable[[str], str], *, typed: bool = False) -> None:
        self._write = write
        self._convert = convert
        self._typed = typed
        self._parts: list[str] = []
        self.is_damaged = False
        """The value is what remains of an object or array, or has a piece of a tag."""

    @property
    def is_value(self) -> bool:
        """Whether the text so far is a value of a type that admits no other text; only if it is
        `typed`."""
        return self._typed and self._convert("".join(self._parts))[0] != '"'

    def write(self, text: str) -> None:
        """Adds the next piece."""
        self._parts.append(text)

    def end(self) -> None:
        """Ends the value."""
        text = "".join(self._parts)
        value = self._convert(text)
        bare = text.strip()
        is_remains = bare[:1] in _OPENERS or bare[-1:] in _CLOSERS or _TAG_MARK(bare)
        self.is_damaged = self._typed and value[0] == '"' and bool(is_remains)
        self._write(value)


ValueSink: TypeAlias = StringSink | BufferedSink


class BareValue:
    """A value without the tag before it. It is certain if it begins with a word, because blanks may
    be the template's, and holds no character of a damaged tag."""

    live = False
    may_end = True

    def __init__(self, sink: ValueSink, marks: str) -> None:
        self._sink = sink
        self._marks = frozenset(marks)
        self._started = False
        self.certain = True

    def write(self, text: str) -> None:
        """Adds the next piece."""
        is_remains = not self._started and not text[0].isalnum()
        self._started = True
        self.certain = self.certain and not is_remains and not self._marks.intersection(text)
        self._sink.write(text)

    def end(self) -> None:
        """Ends the value."""
        self._sink.end()


class Tag(Enum):
    """A tag in or between values."""

    VALUE_START = "opens a parameter"
    BARE_VALUE_START = "opens a parameter, but the tag before its value is missing"
    VALUE_END = "closes it"
    STRAY_PIECE = "belongs to a damaged tag"
    STRAY_VALUE_END = "closes a parameter where the call cannot go on"
    UNREADABLE_START = "opens a parameter, but its key cannot be read"
    FOREIGN_START = "opens a parameter in another format, with a closing tag like this one's"
    JSON_START = "holds all arguments as JSON"
    CALL_START = "opens a call"
    CALL_END = "closes a call"
    FINAL_CALL_END = "closes a call, and nothing but what closes more follows"
    AFTER_CALL = "belongs to what comes after the call"


class QuotedCalls:
    """The calls that a value shows as text: their tags do not end it."""

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

    def add(self, tag: Tag, key: str = "") -> bool:
        """Adds the next tag, of parameter `key` where tags have keys. Returns whether it belongs
        to such a call."""
        if not self.between:
            ends_value = tag in (Tag.VALUE_END, Tag.STRAY_VALUE_END)
            if tag is Tag.CALL_START:
                self.seen = True
                self._keys.append(None)
            elif self._keys and ends_value and key == self._keys[-1]:
                self._keys[-1] = None
            return tag is Tag.CALL_START or bool(self._keys)
        if tag is Tag.VALUE_START:
            self._keys[-1] = key
        elif tag in (Tag.CALL_END, Tag.FINAL_CALL_END):
            self._keys.pop()
        return True


MENTIONABLE: Final = (
    Tag.VALUE_START,
    Tag.FOREIGN_START,
    Tag.STRAY_VALUE_END,
    Tag.STRAY_PIECE,
    Tag.CALL_START,
    Tag.CALL_END,
    Tag.AFTER_CALL,
)
"""Tags that a value may mention."""


class ShownTags:
    """The tags of parameters that are text in the values of a call.

    A value may show a parameter with both tags. One that the call lacks may have begun there,
    unless it follows. A tag without its counterpart may be what is left of a damaged one.
    """

    def __init__(self, parameters: Mapping[str, Any], written: AbstractSet[str]) -> None:
        self._parameters = parameters
        self._written = written
        self._open: list[bool] = []
        """The opening tags of the open value without their closing ones: whether each names a
        parameter that the call has."""
        self._doubts: set[str] = set()
        """Parameters that may have begun with such a tag."""
        self._ambiguous = False
        """A value has a tag without its counterpart, or a piece of one."""

    @property
    def are_text(self) -> bool:
        """Whether all of them are certainly text: the parameters in doubt followed, too."""
        return not self._ambiguous and self._doubts <= self._written

    def may_begin(self, key: str) -> bool:
        """Whether a tag may begin parameter `key`, which the call lacks so far. Only the first one
        in a value may."""
        return not self._open and key not in self._written and self._names(key)

    def _names(self, key: str) -> bool:
        return not self._parameters or key in self._parameters

    def add(self, tag: Tag, key: str = "", *, inside: str = "") -> None:
        """Adds the next tag of the open value, of parameter `key`; `inside`: the element that the
        value belongs to, where these nest."""
        if tag is Tag.VALUE_START:
            self._add_opener(key, inside)
        elif tag is Tag.FOREIGN_START:
            self._open.append(True)
        elif self._open and tag is not Tag.STRAY_PIECE:
            self._open.pop()
        else:
            self._ambiguous = True

    def _add_opener(self, key: str, inside: str) -> None:
        is_repeated = key in self._written or key == inside
        self._open.append(is_repeated)
        if not is_repeated and self._names(key):
            self._doubts.add(key)

    def end_value(self) -> None:
        """Ends the open value."""
        self._ambiguous = self._ambiguous or any(self._open)
        self._open.clear()


class _FramedValue:
    """A value between two line breaks, which are left out."""

    __slots__ = ("_buffered", "_sink", "_started", "live", "may_end")

    def __init__(self, sink: "ValueSink | BareValue") -> None:
        self._sink = sink
        self._started = False
        self._buffered = ""
        """The line break that may be the last one."""
        self.live = False
        """Whether plain text may go into the open block without passing the reader."""
        self.may_end = True
        """Whether the frame admits an end here."""

    def write(self, text: str) -> None:
        """Adds the next piece, which is not empty."""
        if not self.may_end and text[-1] != "\n":  # most pieces
            self._sink.write(text)
            self.live = self._sink.live
            return
        if not self._started:
            self._started = True
            text = text.removeprefix("\n")
        if text:
            text = self._buffered + text
            self._buffered = "\n" if text[-1] == "\n" else ""
            self._sink.write(text.removesuffix(self._buffered))
        self.may_end = bool(self._buffered)
        self.live = not self.may_end and self._sink.live


def copy_text(
    scanner: Scanner,
    markers: Markers[T],
    ends: Callable[[MarkerMatch[T], bool], bool],
    sink: ValueSink | BareValue,
    stretch: PlainStretch | None,
    *,
    frame: bool = False,
    mentionable: Collection[T] = (),
) -> Reader[MarkerMatch[T] | None]:
    """Writes text up to the first marker that `ends` it, and stops in front of that marker; None at
    the input's end.

    `ends` gets each marker once, after the text before it, and whether the text only mentions it
    (a backtick follows), for meanings that are `mentionable`. `stretch`: what is plain in the text;
    None: all of it passes this reader. `frame`: a line break on each side is left out.
    """
    value = _FramedValue(sink) if frame else sink
    look = scanner.position
    while True:
        text = scanner.text
        at = markers.find(text, look, scanner.final)
        marker = markers.at(text, at, scanner.final) if at >= 0 else None
        end = at if at >= 0 else len(text)
        if end > scanner.position:
            piece = text[scanner.position : end]
            scanner.position = end
            value.write(piece)
        if isinstance(marker, MarkerMatch):
            after = text[marker.match.end() : marker.match.end() + 1]
            if marker.meaning in mentionable and not after and not scanner.final:
                marker = MORE
            elif ends(marker, after == "`"):
                return marker
            else:
                look = marker.match.end() if marker.meaning in mentionable else at + 1
                continue
        elif at >= 0 and marker is not MORE:
            look = at + 1
            continue
        if scanner.final:
            return None
        yield stretch if at < 0 and value.live else None
        look = scanner.position


def coerced(text: str, types: frozenset[str]) -> str:
    """Returns `text` as JSON of the first of `types` that fits, else as a JSON string."""
    bare = text.strip()
    return (
        _null(bare, types)
        or _number(bare, types)
        or _boolean(bare, types)
        or _container(bare, types)
        or quoted(text)
    )


def _null(bare: str, types: frozenset[str]) -> str | None:
    if "null" not in types:
        return None
    return "null" if bare in _NULLS else None


def _number(bare: str, types: frozenset[str]) -> str | None:
    if "number" in types:
        return number_text(bare, fraction=True)
    if "integer" in types:
        return number_text(bare, fraction=False)
    return None


def _boolean(bare: str, types: frozenset[str]) -> str | None:
    if "boolean" not in types:
        return None
    return _BOOLEANS.get(bare.lower())


def _container(bare: str, types: frozenset[str]) -> str | None:
    is_object = bare[:1] == "{" and "object" in types
    is_array = bare[:1] == "[" and "array" in types
    if not is_object and not is_array:
        return None
    return literal(bare)


def json_or_string(text: str) -> str:
    """Returns `text` as JSON if it is a JSON or Python literal, else as a JSON string."""
    return literal(text) or quoted(text)


def json_string_or_string(text: str) -> str:
    """Returns `text` as a JSON string, unless it is one already."""
    value = literal(text)
    if value is not None and value[0] == '"':
        return value
    return quoted(text)
