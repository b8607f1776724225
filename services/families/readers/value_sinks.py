"""The sinks of bare text: each writes a value piece by piece, or at its end, as JSON."""

from collections.abc import Callable
from re import compile
from typing import Final, TypeAlias

from services.families.grammar.scanner import Write, escaped, quoted

NULLS: Final = ("null", "None")
_OPENERS: Final = ("{", "[")
_CLOSERS: Final = ("}", "]")
_TAG_MARK: Final = compile("[<｜]").search


class StringSink:
    """Streams a value as a JSON string; a `nullable` one is buffered as long as it may be null."""

    __slots__ = ("_buffered", "_write")
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
            if any(null.startswith(text) for null in NULLS):
                self._buffered = text
                return
            self._buffered = None
            self._write('"')
        self._write(escaped(text))

    def end(self) -> None:
        """Ends the value."""
        if self._buffered is None:
            self._write('"')
        elif self._buffered in NULLS:
            self._write("null")
        else:
            self._write(quoted(self._buffered))


class BufferedSink:
    """Collects a value, and writes it at its end as `convert` returns it."""

    __slots__ = ("_convert", "_parts", "_typed", "_write", "is_damaged")
    live = False

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


class UntaggedSink:
    """Passes on a value without the tag before it. It is certain if it begins with a word, because
    blanks may be the template's, and holds no character of a damaged tag."""

    live = False

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


class FramedSink:
    """Passes on a value without the line breaks around it."""

    __slots__ = ("_buffered", "_may_end", "_sink", "_started", "live")

    def __init__(self, sink: ValueSink | UntaggedSink) -> None:
        self._sink = sink
        self._started = False
        self._buffered = ""
        """The line break that may be the last one."""
        self.live = False
        """Whether plain text may go into the open block without passing the reader."""
        self._may_end = True
        """Whether the frame admits an end here."""

    def write(self, text: str) -> None:
        """Adds the next piece, which is not empty."""
        if not self._may_end and text[-1] != "\n":  # most pieces
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
        self._may_end = bool(self._buffered)
        self.live = not self._may_end and self._sink.live


TextSink: TypeAlias = ValueSink | UntaggedSink | FramedSink
