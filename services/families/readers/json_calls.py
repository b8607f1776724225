"""Reads calls in JSON: `{"name": NAME, "arguments": {…}}`, a list of such objects, or the arguments
alone after a name.

Arguments stream unchanged once the name and their first token are known. A body that fails before
that is returned as text, unless it names a tool of the request; one that fails later is a call that
never completes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from json import loads
from re import compile, split
from typing import Final

from services.families.grammar.scanner import Reader, Scanner
from services.families.grammar.shapes import Markers, Shape
from services.families.grammar.turn import CallOpener, TurnState
from services.families.readers.values import JSON, Values, drop

_KEY: Final = compile(r"""(["'])((?:[^"'\\]|\\.){0,256}+)\1""")
_MAX_KEY: Final = 520
_NO_ARGUMENTS: Final = frozenset({"type", "id", "call_id", "tool_call_id", "index"})
"""Keys of a call that do not hold arguments."""
_SURROGATE: Final = compile(r"\\u[dD][89a-fA-F]").match


class Form(Enum):
    """The form of the text after the opening marker."""

    ARGUMENTS = "the arguments alone; the marker has the name"
    OBJECT = "an object with name and arguments"
    LIST = "a list of such objects, or one alone"
    LINES = "such objects one after the other"
    KEYED = "a list of objects with one key: the name, its value the arguments"


@dataclass(frozen=True, kw_only=True)
class JsonCalls:
    """The grammar of a call body in JSON.

    `closes` end a call that is not in a list; without them the end of the JSON does. `names`,
    `arguments` and `ids` are the keys that are read. `strict`: the JSON itself is the marker, so an
    object with another key, or with an unknown name and no arguments, is not a call.
    """

    form: Form = Form.OBJECT
    closes: tuple[str, ...] = ()
    names: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ()
    strict: bool = False
    rename: tuple[str, ...] = ()
    stop_closes: bool = False
    """The marker that closes a call is a stop token, which engines do not return."""
    values: Values = JSON

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[str | None]:
        """Reads the call or calls."""
        return (yield from _Calls(self, turn, opener).read())

    @cached_property
    def closers(self) -> tuple[Shape, ...]:
        """`closes` as shapes."""
        return tuple(map(Shape, self.closes))


class _Calls:
    def __init__(self, grammar: JsonCalls, turn: TurnState, opener: CallOpener) -> None:
        self.grammar, self.turn, self.opener = grammar, turn, opener
        self.name: str | None = None
        self.call_id: str | None = None
        if opener.name is not None:
            self._set_name(opener.name, opener.call_id)
        self._opening = (
            split(r"[\[{]", opener.text, maxsplit=1)[0] if grammar.strict else opener.text
        )
        self._pending: str | None = None
        self._argued = False
        self._other = False
        """A dropped key may have held arguments."""
        self._twice = False
        """There are arguments twice."""
        self._any = False
        self._started = False

    def read(self) -> Reader[str | None]:
        """Reads all calls; see `markup.CallReader`."""
        scanner, grammar = self.turn.scanner, self.grammar
        if grammar.strict:
            scanner.position -= len(self.opener.text) - len(self._opening)
        scanner.record()
        yield from scanner.blanks()
        if grammar.form is Form.ARGUMENTS or (
            self.name is not None and (yield from scanner.peek()) != "{"
        ):
            whole = yield from self._sole(self._bare)
        elif grammar.form is Form.LINES:
            whole = yield from self._list()
        elif grammar.form is Form.OBJECT or (yield from scanner.peek()) != "[":
            whole = yield from self._sole(self._object)
        else:
            scanner.position += 1
            whole = yield from self._list()
        if whole:
            scanner.recorded()
            return None
        return (yield from self._failed())

    def _set_name(self, name: str, call_id: str | None = None) -> None:
        self.name, self.call_id = self.turn.tools.named(name, self.grammar.rename), call_id

    def _sole(self, item: Callable[[], Reader[bool]]) -> Reader[bool]:
        """Reads one call and its closing marker."""
        if not (yield from item()):
            return False
        closed = yield from self._closed()
        scanner = self.turn.scanner
        self._end(closed or scanner.stopped or not scanner.final, whole=closed)
        return True

    def _end(self, complete: bool, *, whole: bool) -> None:
        torn = self.grammar.values.torn
        if torn is None:
            self.turn.blocks.close(complete)
        else:
            self.turn.blocks.end_call(complete, torn, whole=whole)

    def _closed(self) -> Reader[bool]:
        """Passes the closing marker, and stray brackets before it; False if there is none."""
        if not self.grammar.closers:
            return True
        scanner = self.turn.scanner
        yield from scanner.blanks()
        while (yield from scanner.peek()) in ("}", "]"):
            scanner.position += 1
            yield from scanner.blanks()
        return (yield from scanner.match(*self.grammar.closers)) is not None

    def _list(self) -> Reader[bool]:
        scanner = self.turn.scanner
        while True:
            yield from scanner.blanks()
            char = yield from scanner.peek()
            if char == "{":
                self.name = self.call_id = self._pending = None
                self._argued = self._other = self._twice = False
                if not (yield from self._object()):
                    return False
                self.turn.blocks.close()
                self._any = True
                scanner.record()
            elif char == ",":
                scanner.position += 1
            else:
                if char == "]":
                    scanner.position += 1
                return self._any

    def _object(self) -> Reader[bool]:
        """Reads an object that is a call; leaves its block open."""
        scanner, blocks = self.turn.scanner, self.turn.blocks
        if (yield from scanner.peek()) != "{" or not (yield from self._members(nested=False)):
            return False
        if self.name is None or self._twice:
            return False
        if blocks.kind != "tool_use":
            unsure = self._other or (self.grammar.strict and self.name not in self.turn.tools)
            if self._pending is None and unsure:
                return False
            self._open(self._pending or "{}")
        return True

    def _members(self, nested: bool) -> Reader[bool]:
        scanner = self.turn.scanner
        scanner.position += 1
        while True:
            yield from scanner.blanks()
            char = yield from scanner.peek()
            if char in ("}", ","):
                scanner.position += 1
                if char == "}":
                    return True
                continue
            key = yield from self._short_string()
            if (
                key is None
                or not (yield from JSON.colon(scanner, drop))
                or not (yield from self._member(key, nested))
            ):
                return False

    def _member(self, key: str, nested: bool) -> Reader[bool]:
        grammar, scanner = self.grammar, self.turn.scanner
        char = yield from scanner.peek()
        if grammar.form is Form.KEYED:
            self._set_name(key)
            return (yield from self._value())
        if key in grammar.arguments:
            if self._argued:  # the first ones may have been sent
                self._other = self._twice = True
                return (yield from grammar.values.copy(scanner, drop))
            self._argued = True
            return (yield from self._value())
        if key in grammar.names or (key == "function" and char == '"'):
            name = yield from self._short_string()
            if not name:
                return False
            self._set_name(name, self.call_id)
            return True
        if key == "function" and char == "{" and not nested:
            return (yield from self._members(nested=True))
        if key in grammar.ids and char == '"':
            self.call_id = yield from self._short_string()
            return self.call_id is not None
        if grammar.strict and key not in ("type", "id"):
            return False
        self._other = self._other or key not in _NO_ARGUMENTS
        return (yield from grammar.values.copy(scanner, drop))

    def _short_string(self) -> Reader[str | None]:
        scanner = self.turn.scanner
        while True:
            found = _KEY.match(scanner.text, scanner.position)
            if found is not None:
                scanner.position = found.end()
                try:
                    text = str(loads(f'"{found[2]}"', strict=False))
                except ValueError:
                    text = found[2]
                return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            rest = scanner.text[scanner.position : scanner.position + _MAX_KEY]
            if scanner.final or len(rest) == _MAX_KEY or rest[:1] not in ("", '"', "'"):
                return None
            yield

    def _bare(self) -> Reader[bool]:
        """Reads the arguments alone, or the closer without any."""
        scanner = self.turn.scanner
        if (yield from scanner.peek()) in ("{", '"', "n"):
            return (yield from self._value())
        closed = yield from scanner.follows(*self.grammar.closers)
        if closed or (self.grammar.stop_closes and scanner.stopped and not scanner.rest()):
            self._open("{}")
            return True
        return False

    def _value(self) -> Reader[bool]:
        """Reads the arguments: an object, null, or a string that contains an object."""
        scanner = self.turn.scanner
        self._started = True
        char = yield from scanner.peek()
        written: list[str] = []
        if char == "{":
            if not (yield from scanner.follows(self.grammar.values.object)):
                return False
            if self.name is not None:
                self._open("")
                return (
                    yield from self.grammar.values.copy(scanner, self.turn.blocks.write, live=True)
                )
            whole = yield from self.grammar.values.copy(scanner, written.append)
        elif char == '"':
            whole = yield from self._encoded(written)
        else:
            whole = (yield from JSON.word(scanner)) == "null"
            written.append("{}")
        if self.turn.blocks.kind != "tool_use":
            self._pending = "".join(written)
            if whole and self.name is not None:
                self._open(self._pending)
        return whole

    def _encoded(self, written: list[str]) -> Reader[bool]:
        """Reads arguments inside a JSON string, and decodes them as they stream in."""
        inner = Scanner()
        copy = JSON.copy(inner, lambda text: self._write(written, text))
        ended: list[bool] = []

        def decode(piece: str) -> None:
            if piece == '"':
                return
            # Half of a surrogate pair stays an escape, because alone it is not a character.
            inner.extend(piece if _SURROGATE(piece) else loads(f'"{piece}"', strict=False))
            if ended:
                return
            try:
                next(copy)
            except StopIteration as end:
                ended.append(bool(end.value))

        if not (yield from JSON.string(self.turn.scanner, decode, False)):
            return False
        if not ended and not inner.text.strip() and self.turn.blocks.kind != "tool_use":
            written.append("{}")
            return True
        opened = self.turn.blocks.kind == "tool_use" or "".join(written[:1]) == "{"
        return opened and ended == [True] and not inner.rest().strip()

    def _write(self, written: list[str], text: str) -> None:
        blocks = self.turn.blocks
        if blocks.kind == "tool_use":
            blocks.write(text)
        elif self.name is not None and not written and text[:1] == "{":
            self._open(text)
        else:
            written.append(text)

    def _open(self, text: str) -> None:
        self.turn.open_call(self.name, self.call_id)
        if text:
            self.turn.blocks.write(text)

    def _failed(self) -> Reader[str | None]:
        """Handles a body that is malformed or unfinished."""
        turn, scanner = self.turn, self.turn.scanner
        text = self._opening + scanner.recorded()
        if turn.blocks.kind != "tool_use":
            if scanner.final:
                return text if scanner.stopped and self.grammar.strict and not self._any else None
            certain = not self.grammar.strict or self._started
            certain = self.grammar.form is Form.ARGUMENTS or (
                certain and self.name is not None and self.name in turn.tools
            )
            if not self._any and not certain:
                return text
            if self.name is not None:
                self._open("")
        self._end(False, whole=False)
        if self.grammar.closers:
            again = (Shape(self.opener.head),) if self.opener.head else ()
            yield from scanner.seek(
                Markers([(shape, None) for shape in (*self.grammar.closers, *again)])
            )
        return None
