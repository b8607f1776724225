"""Reads calls in JSON: `{"name": NAME, "arguments": {…}}`, a list of such objects, or the arguments
alone after a name.

Arguments stream unchanged once the name and their first token are known. A body that fails before
that is returned as text, unless it names a tool of the request; one that fails later is a call that
never completes. Neither does a call with a parameter of its tool beside the arguments, or with
other text between the JSON and what closes the call: the arguments may go on there.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from itertools import product
from json import loads
from re import compile, split
from typing import Final

from services.families.grammar.scanner import Reader, Scanner, Write
from services.families.grammar.shapes import Markers, Shape, closing_shapes
from services.families.grammar.turn_state import (
    IS_CALL,
    CallOpener,
    CallReading,
    TurnState,
    not_a_call,
)
from services.families.readers.json_values import JSON, Values, drop

_KEY: Final = compile(r"""(["'])((?:[^"'\\]|\\.){0,256}+)\1""")
_MAX_KEY: Final = 520
_NO_ARGUMENTS: Final = frozenset({"type", "id", "call_id", "tool_call_id", "index"})
"""Keys of a call that do not hold arguments."""
_MEMBER: Final = tuple(
    Shape(f"{before}{quote}{{key}}{quote}{{ws}}:")
    for before, quote in product(("{ws},{ws}", "{ws}"), ('"', "'"))
)
"""A member of an object after the end of that object."""


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

    `call_closers` end a call that is not in a list; without them the end of the JSON does. `names`,
    `arguments` and `ids` are the keys that are read. `strict`: the JSON itself is the marker, so an
    object with another key, or with an unknown name and no arguments, is not a call.
    """

    form: Form = Form.OBJECT
    call_closers: tuple[str, ...] = ()
    names: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ()
    strict: bool = False
    rename: tuple[str, ...] = ()
    stop_closes: bool = False
    """The marker that closes a call is a stop token, which engines do not return."""
    values: Values = JSON

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[CallReading]:
        """Reads the call or calls."""
        return (yield from _JsonCallReader(self, turn, opener).read())

    @cached_property
    def closer_shapes(self) -> tuple[Shape, ...]:
        """`call_closers` as shapes."""
        return closing_shapes(self.call_closers)

    @cached_property
    def members_after_closer(self) -> tuple[Shape, ...]:
        """A closing marker before arguments, or inside of them."""
        texts = ("{ws}{", *(member.text for member in _MEMBER))
        return tuple(map(Shape, map("".join, product(self.call_closers, texts))))

    def pass_closer(self, scanner: Scanner) -> Reader[bool]:
        """Passes the closing marker, and stray brackets before it; False if there is none. A call
        of a format without one must not go on."""
        if not self.closer_shapes:
            return not (yield from scanner.follows(*_MEMBER))
        yield from scanner.blanks()
        while (yield from scanner.peek()) in ("}", "]"):
            scanner.position += 1
            yield from scanner.blanks()
        return (yield from scanner.match(*self.closer_shapes)) is not None


def _short_string(scanner: Scanner) -> Reader[str | None]:
    """Passes a key, a name or an id; None if there is none here."""
    while True:
        match = _KEY.match(scanner.text, scanner.position)
        if match is not None:
            scanner.position = match.end()
            try:
                text = str(loads(f'"{match[2]}"', strict=False))
            except ValueError:
                text = match[2]
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        rest = scanner.text[scanner.position : scanner.position + _MAX_KEY]
        if scanner.final or len(rest) == _MAX_KEY or rest[:1] not in ("", '"', "'"):
            return None
        yield None


class _DecodedValue:
    """A JSON value inside a JSON string: decoded and copied as it streams in."""

    def __init__(self, write: Write) -> None:
        self._text = Scanner()
        self._copying = JSON.copy(self._text, write)
        self._whole: bool | None = None
        """Whether what was copied is a value; None: it has not ended."""

    def add(self, piece: str) -> None:
        """Adds the next piece of the string as it is written: plain text, an escape or a quote."""
        if piece == '"':
            return
        self._text.extend(loads(f'"{piece}"', strict=False))
        if self._whole is not None:
            return
        try:
            next(self._copying)
        except StopIteration as end:
            self._whole = bool(end.value)

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing but blanks."""
        return self._whole is None and not self._text.text.strip()

    @property
    def is_whole(self) -> bool:
        """Whether there is one value and nothing after it."""
        return self._whole is True and not self._text.rest().strip()


class _JsonCall:
    """A call while it is read: its name and id, and its arguments as they stream in. Their block
    opens once the name and the first token of the arguments are known."""

    def __init__(self, grammar: JsonCalls, turn: TurnState) -> None:
        self._grammar = grammar
        self._turn = turn
        self.name: str | None = None
        self._call_id: str | None = None
        self._pending: str | None = None
        """Arguments that precede the name."""
        self._has_arguments = False
        self._is_repeated = False
        """There are arguments twice."""
        self._dropped: list[str] = []
        """The dropped keys that may have held arguments."""
        self.has_value = False
        """A value of arguments has begun."""

    def set_name(self, name: str, call_id: str | None = None) -> None:
        """Sets the name as the model wrote it, and the id."""
        self.name = self._turn.tools.registered_name(name, self._grammar.rename)
        self._call_id = call_id

    def read(self) -> Reader[bool]:
        """Reads an object with name and arguments; leaves its block open."""
        if (yield from self._turn.scanner.peek()) != "{":
            return False
        if not (yield from self._members(nested=False)):
            return False
        if self.name is None or self._is_repeated or self._lacks_argument(self.name):
            return False
        if self._turn.blocks.kind == "tool_use":
            return True
        unknown = self._grammar.strict and self.name not in self._turn.tools
        if self._pending is None and (self._dropped or unknown):
            return False
        self.open(self._pending or "{}")
        return True

    def _lacks_argument(self, name: str) -> bool:
        """Whether a dropped key is a parameter of the tool."""
        parameters = self._turn.tools.parameters(name)
        return any(key in parameters or not parameters for key in self._dropped)

    def _members(self, nested: bool) -> Reader[bool]:
        scanner = self._turn.scanner
        scanner.position += 1
        while True:
            yield from scanner.blanks()
            char = yield from scanner.peek()
            if char in ("}", ","):
                scanner.position += 1
                if char == "}":
                    return True
                continue
            key = yield from _short_string(scanner)
            if key is None or not (yield from JSON.colon(scanner, drop)):
                return False
            char = yield from scanner.peek()
            if not (yield from self._member(key, char, nested)):
                return False

    def _member(self, key: str, char: str, nested: bool) -> Reader[bool]:
        """Reads a value that begins with `char`."""
        grammar = self._grammar
        if grammar.form is Form.KEYED and self.name is None:
            self.set_name(key)
            return self._value()
        if key in grammar.arguments:
            return self._arguments()
        if key in grammar.names or (key == "function" and char == '"'):
            return self._name()
        if key == "function" and char == "{" and not nested:
            return self._members(nested=True)
        if key in grammar.ids and char == '"':
            return self._id()
        return self._pass_member(key)

    def _arguments(self) -> Reader[bool]:
        if self._has_arguments:  # the first ones may have been sent
            self._is_repeated = True
            return self._grammar.values.copy(self._turn.scanner, drop)
        self._has_arguments = True
        return self._value()

    def _id(self) -> Reader[bool]:
        self._call_id = yield from _short_string(self._turn.scanner)
        return self._call_id is not None

    def _name(self) -> Reader[bool]:
        name = yield from _short_string(self._turn.scanner)
        if not name:
            return False
        self.set_name(name, self._call_id)
        return True

    def _pass_member(self, key: str) -> Reader[bool]:
        """Passes over the value of a member that is not read."""
        if self._grammar.strict and key not in ("type", "id"):
            return False
        if key not in _NO_ARGUMENTS:
            self._dropped.append(key)
        return (yield from self._grammar.values.copy(self._turn.scanner, drop))

    def read_arguments(self) -> Reader[bool]:
        """Reads the arguments alone, or the closer without any."""
        scanner = self._turn.scanner
        if (yield from scanner.peek()) in ("{", '"', "n"):
            return (yield from self._value())
        if (yield from scanner.follows(*self._grammar.members_after_closer)):
            return False
        closed = yield from scanner.follows(*self._grammar.closer_shapes)
        if closed or (self._grammar.stop_closes and scanner.stopped and not scanner.rest()):
            is_certain = not self._turn.damaged  # an unreadable call may have lost its arguments
            self.open("{}")
            return is_certain
        return False

    def _value(self) -> Reader[bool]:
        """Reads the arguments: an object, null, or a string that contains an object."""
        scanner = self._turn.scanner
        self.has_value = True
        char = yield from scanner.peek()
        written: list[str] = []
        if char == "{":
            values = self._grammar.values
            if not (yield from scanner.follows(values.object)):
                return False
            if self.name is not None:
                self.open()
                return (yield from values.copy(scanner, self._turn.blocks.write, live=True))
            is_value = yield from values.copy(scanner, written.append)
        elif char == '"':
            is_value = yield from self._encoded(written)
        else:
            is_value = (yield from JSON.word(scanner)) == "null"
            written.append("{}")
        if self._turn.blocks.kind != "tool_use":
            self._pending = "".join(written)
            if is_value and self.name is not None:
                self.open(self._pending)
        return is_value

    def _encoded(self, written: list[str]) -> Reader[bool]:
        """Reads arguments inside a JSON string, and decodes them as they stream in."""
        decoded = _DecodedValue(partial(self._write, written))
        if not (yield from JSON.string(self._turn.scanner, decoded.add, False)):
            return False
        is_open = self._turn.blocks.kind == "tool_use"
        if decoded.is_blank and not is_open:
            written.append("{}")
            return not (yield from self._turn.scanner.peek()).isalnum()
        is_object = is_open or "".join(written[:1]) == "{"
        return is_object and decoded.is_whole

    def _write(self, written: list[str], text: str) -> None:
        blocks = self._turn.blocks
        if blocks.kind == "tool_use":
            blocks.write(text)
        elif self.name is not None and not written and text[:1] == "{":
            self.open(text)
        else:
            written.append(text)

    def open(self, text: str = "") -> None:
        """Opens the block, and writes `text`, the first of the arguments, into it."""
        self._turn.open_call(self.name, self._call_id)
        if text:
            self._turn.blocks.write(text)


class _JsonCallReader:
    """Reads the call or calls of one body in the form of a grammar."""

    def __init__(self, grammar: JsonCalls, turn: TurnState, opener: CallOpener) -> None:
        self._grammar = grammar
        self._turn = turn
        self._opener = opener
        self._call = _JsonCall(grammar, turn)
        if opener.name is not None:
            self._call.set_name(opener.name, opener.call_id)
        self._opening = opener.text
        """The text before the JSON."""
        if grammar.strict:
            self._opening = split(r"[\[{]", opener.text, maxsplit=1)[0]
        self._has_calls = False
        """A call of a list has been read."""

    def read(self) -> Reader[CallReading]:
        """Reads all calls; see `call_marker.CallReader`."""
        scanner = self._turn.scanner
        if self._grammar.strict:
            scanner.position -= len(self._opener.text) - len(self._opening)
        scanner.start_recording()
        yield from scanner.blanks()
        char = yield from scanner.peek()
        if not (yield from self._body(char)):
            return (yield from self._failed())
        scanner.stop_recording()
        return IS_CALL

    def _body(self, char: str) -> Reader[bool]:
        """Reads the call or the list that begins with `char`; returns whether it is one."""
        form = self._grammar.form
        if form is Form.ARGUMENTS or (self._call.name is not None and char != "{"):
            return self._single_call(self._call.read_arguments())
        if form is Form.LINES:
            return self._list()
        if form is Form.OBJECT or char != "[":
            return self._single_call(self._call.read())
        self._turn.scanner.position += len("[")
        return self._list()

    def _single_call(self, reading: Reader[bool]) -> Reader[bool]:
        """Reads one call with `reading`, and its closing marker."""
        if not (yield from reading):
            return False
        closed = yield from self._grammar.pass_closer(self._turn.scanner)
        complete = closed or (yield from self._ends_without_closer())
        self._turn.blocks.end_call(complete, self._grammar.values.find_stray_end, all_closed=closed)
        return True

    def _ends_without_closer(self) -> Reader[bool]:
        """Whether a call ends here: the model stopped, or the next call begins."""
        scanner = self._turn.scanner
        next_call = self._grammar.closer_shapes and self._opener.head
        if next_call and (yield from scanner.follows(Shape(self._opener.head))):
            return True
        return scanner.stopped_here

    def _list(self) -> Reader[bool]:
        scanner = self._turn.scanner
        while True:
            yield from scanner.blanks()
            char = yield from scanner.peek()
            if char == "{":
                self._call = _JsonCall(self._grammar, self._turn)
                if not (yield from self._call.read()):
                    return False
                self._turn.blocks.close(not (yield from scanner.follows(*_MEMBER)))
                self._has_calls = True
                scanner.start_recording()
            elif char == ",":
                scanner.position += 1
            else:
                if char == "]":
                    scanner.position += 1
                return self._has_calls

    def _failed(self) -> Reader[CallReading]:
        """Handles a body that is malformed or unfinished."""
        blocks = self._turn.blocks
        scanner = self._turn.scanner
        text = self._opening + scanner.stop_recording()
        if blocks.kind != "tool_use":
            if scanner.final:
                is_text = scanner.stopped and self._grammar.strict and not self._has_calls
                return not_a_call(text) if is_text else IS_CALL
            if not self._has_calls and not self._is_certain:
                return not_a_call(text)
            if self._call.name is not None:
                self._call.open()
        blocks.end_call(False, self._grammar.values.find_stray_end, all_closed=False)
        if self._grammar.closer_shapes:
            again = (Shape(self._opener.head),) if self._opener.head else ()
            shapes = [(shape, None) for shape in (*map(Shape, self._grammar.call_closers), *again)]
            yield from scanner.seek(Markers(shapes))
        return IS_CALL

    @property
    def _is_certain(self) -> bool:
        """Whether a body that failed before its block opened is a call all the same."""
        if self._grammar.form is Form.ARGUMENTS:
            return True
        if self._grammar.strict and not self._call.has_value:
            return False
        return self._call.name is not None and self._call.name in self._turn.tools
