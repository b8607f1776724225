"""Where the text of a value goes: said as a string while it comes, or kept until its type shows."""

from typing import Protocol

from services.parser.coercion import coerced
from services.parser.readers.values import literal
from services.parser.tape import Say, escaped, quoted


class Sink(Protocol):
    """Takes a value in pieces."""

    @property
    def live(self) -> bool:
        """Pieces go straight into the open block, escaped."""

    def write(self, text: str) -> None:
        """Takes the next piece."""

    def end(self) -> None:
        """The value has ended."""


class StringSink:
    """A string, said as it comes."""

    __slots__ = ("_say",)
    live = True

    def __init__(self, say: Say) -> None:
        self._say = say
        say('"')

    def write(self, text: str) -> None:
        """Says it, escaped."""
        self._say(escaped(text))

    def end(self) -> None:
        """Closes the string."""
        self._say('"')


class TypedSink:
    """A value whose type shows when it has ended."""

    __slots__ = ("_parts", "_say", "_types")
    live = False

    def __init__(self, say: Say, types: frozenset[str]) -> None:
        self._say, self._types = say, types
        self._parts: list[str] = []

    def write(self, text: str) -> None:
        """Keeps it."""
        self._parts.append(text)

    def end(self) -> None:
        """Says the value."""
        self._say(coerced("".join(self._parts), self._types, literal))


class JsonSink:
    """JSON, if it is: else a string. With `strings`, only a JSON string is taken as JSON."""

    __slots__ = ("_parts", "_say", "_strings")
    live = False

    def __init__(self, say: Say, strings: bool = False) -> None:
        self._say, self._strings = say, strings
        self._parts: list[str] = []

    def write(self, text: str) -> None:
        """Keeps it."""
        self._parts.append(text)

    def end(self) -> None:
        """Says the value."""
        text = "".join(self._parts)
        value = literal(text)
        self._say(quoted(text) if value is None or (self._strings and value[0] != '"') else value)


class NullableSink:
    """A string or null: held only while it may be null."""

    __slots__ = ("_say", "_string", "_text")

    def __init__(self, say: Say) -> None:
        self._say = say
        self._text = ""
        self._string: StringSink | None = None

    @property
    def live(self) -> bool:
        """It has shown that it is a string."""
        return self._string is not None

    def write(self, text: str) -> None:
        """Says it, unless all so far may still be null."""
        if self._string is None:
            text = self._text = self._text + text
            if "null".startswith(text):
                return
            self._string = StringSink(self._say)
        self._string.write(text)

    def end(self) -> None:
        """Says what has not been said."""
        if self._string is None and self._text == "null":
            self._say("null")
            return
        if self._string is None:
            self._string = StringSink(self._say)
            self._string.write(self._text)
        self._string.end()
