"""Calls in JSON: `{"name": NAME, "arguments": {…}}`, a list of such, or the arguments alone behind a name.

Arguments stream as written once the name and their first token are known. A body that fails before that was no call,
and its text is given back, unless it names a tool of the request; one that fails later is a call that never completes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from json import loads
from re import compile
from typing import Final

from services.parser.readers.values import JSON, Values
from services.parser.shapes import MORE, Markers, Shape
from services.parser.tape import Reading, Tape
from services.parser.turn import Opener, Turn

_KEY: Final = compile(r"""(["'])((?:[^"'\\]|\\.){0,256}+)\1""")
_MAX_KEY: Final = 520
_SURROGATE: Final = compile(r"\\u[dD][89a-fA-F]").match
_BRACKET: Final = compile(r"[\[{]|\Z").search


class Form(Enum):
    """What stands behind the opening marker."""

    ARGUMENTS = "the arguments alone; the marker has the name"
    OBJECT = "an object with name and arguments"
    LIST = "a list of such objects, or one alone"
    KEYED = "a list of objects with one key: the name, its value the arguments"


@dataclass(frozen=True, kw_only=True)
class JsonCalls:
    """The grammar of such a body.

    `closes` end a call that is not in a list; without them the JSON's own end does. `names`, `arguments`, `ids` are the
    keys that matter. If `strict`, the JSON itself is the marker, and there is none to trust: another key, or a name
    without arguments that no tool has, shows that it is no call.
    """

    form: Form = Form.OBJECT
    closes: tuple[str, ...] = ()
    names: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ()
    strict: bool = False
    rename: tuple[str, ...] = ()
    stop_closes: bool = False
    """What closes the call is a stop token, which engines keep to themselves."""
    values: Values = JSON

    def read(self, turn: Turn, opener: Opener) -> Reading[str | None]:
        """Reads the call or calls."""
        return (yield from _Calls(self, turn, opener).read())

    @cached_property
    def closers(self) -> tuple[Shape, ...]:
        """`closes`, ready."""
        return tuple(map(Shape, self.closes))


class _Calls:
    """The calls behind one marker."""

    __slots__ = ("_any", "_argued", "_begun", "_lead", "_pending", "call_id", "grammar", "name", "opener", "turn")

    def __init__(self, grammar: JsonCalls, turn: Turn, opener: Opener) -> None:
        self.grammar, self.turn, self.opener = grammar, turn, opener
        self.name: str | None = None
        self.call_id: str | None = None
        if opener.name is not None:
            self._named(opener.name, opener.call_id)
        self._lead = opener.text[: _bracket(opener.text)] if grammar.strict else opener.text
        self._pending: str | None = None
        self._argued = False
        self._any = False
        self._begun = False

    def read(self) -> Reading[str | None]:
        """Reads all; see `markup.Body`."""
        tape, grammar = self.turn.tape, self.grammar
        if grammar.strict:
            tape.position -= len(self.opener.text) - len(self._lead)
        tape.keep()
        yield from tape.blanks()
        if grammar.form is Form.ARGUMENTS:
            whole = yield from self._sole(self._bare)
        elif grammar.form is Form.OBJECT or (yield from tape.peek()) != "[":
            whole = yield from self._sole(self._object)
        else:
            whole = yield from self._list()
        if whole:
            tape.release()
            return None
        return (yield from self._failed())

    def _named(self, name: str, call_id: str | None = None) -> None:
        self.name, self.call_id = self.turn.tools.named(name, self.grammar.rename), call_id

    def _sole(self, item: Callable[[], Reading[bool]]) -> Reading[bool]:
        """One call and its closing marker."""
        if not (yield from item()):
            return False
        self.turn.blocks.close((yield from self._closed()))
        return True

    def _closed(self) -> Reading[bool]:
        """Passes the closing marker, and stray brackets before it; False if the input is cut off here."""
        if not self.grammar.closers:
            return True
        tape = self.turn.tape
        yield from tape.blanks()
        while (yield from tape.peek()) in ("}", "]"):
            tape.position += 1
            yield from tape.blanks()
        if (yield from tape.match(*self.grammar.closers)) is not None:
            return True
        return tape.stopped or not tape.final

    def _list(self) -> Reading[bool]:
        tape = self.turn.tape
        tape.position += 1
        while True:
            yield from tape.blanks()
            char = yield from tape.peek()
            if char == "{":
                self.name = self.call_id = self._pending = None
                self._argued = False
                if not (yield from self._object()):
                    return False
                self.turn.blocks.close()
                self._any = True
                tape.keep()
            elif char == ",":
                tape.position += 1
            else:
                if char == "]":
                    tape.position += 1
                return self._any

    def _object(self) -> Reading[bool]:
        """An object that is a call; leaves its block open."""
        tape, blocks = self.turn.tape, self.turn.blocks
        if (yield from tape.peek()) != "{" or not (yield from self._members(nested=False)) or self.name is None:
            return False
        if blocks.kind != "tool_use":
            if self.grammar.strict and self._pending is None and self.name not in self.turn.tools:
                return False
            self._open(self._pending or "{}")
        return True

    def _members(self, nested: bool) -> Reading[bool]:
        tape = self.turn.tape
        tape.position += 1
        while True:
            yield from tape.blanks()
            char = yield from tape.peek()
            if char in ("}", ","):
                tape.position += 1
                if char == "}":
                    return True
                continue
            key = yield from self._word()
            if key is None or not (yield from JSON.colon(tape, _nowhere)) or not (yield from self._member(key, nested)):
                return False

    def _member(self, key: str, nested: bool) -> Reading[bool]:
        grammar, tape = self.grammar, self.turn.tape
        char = yield from tape.peek()
        if grammar.form is Form.KEYED:
            self._named(key)
            return (yield from self._value())
        if key in grammar.arguments and not self._argued:  # what was said of the first cannot be taken back
            self._argued = True
            return (yield from self._value())
        if key in grammar.names or (key == "function" and char == '"'):
            name = yield from self._word()
            if not name:
                return False
            self._named(name, self.call_id)
            return True
        if key == "function" and char == "{" and not nested:
            return (yield from self._members(nested=True))
        if key in grammar.ids and char == '"':
            self.call_id = yield from self._word()
            return self.call_id is not None
        if grammar.strict and key not in ("type", "id"):
            return False
        return (yield from grammar.values.copy(tape, _nowhere))

    def _word(self) -> Reading[str | None]:
        """A short string: a key or name."""
        tape = self.turn.tape
        while True:
            found = _KEY.match(tape.text, tape.position)
            if found is not None:
                tape.position = found.end()
                try:
                    text = str(loads(f'"{found[2]}"', strict=False))
                except ValueError:
                    text = found[2]
                return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            rest = tape.text[tape.position : tape.position + _MAX_KEY]
            if tape.final or len(rest) == _MAX_KEY or rest[:1] not in ("", '"', "'"):
                return None
            yield

    def _bare(self) -> Reading[bool]:
        """The arguments alone, or nothing where they might be."""
        tape = self.turn.tape
        if (yield from tape.peek()) in ("{", '"', "n"):
            return (yield from self._value())
        closer = yield from tape.match(*self.grammar.closers)
        if closer is not None:
            tape.position = closer[1].start()
            self._open("{}")
            return True
        if self.grammar.stop_closes and tape.stopped and not tape.rest():
            self._open("{}")
            return True
        return False

    def _value(self) -> Reading[bool]:
        """The arguments: an object, or null, or a string that holds an object."""
        tape = self.turn.tape
        self._begun = True
        char = yield from tape.peek()
        said: list[str] = []
        if char == "{":
            while (answer := self.grammar.values.object.at(tape.text, tape.position, tape.final)) is MORE:
                yield
            if answer is None:
                return False
            if self.name is not None:
                self._open("")
                return (yield from self.grammar.values.copy(tape, self.turn.blocks.say, live=True))
            whole = yield from self.grammar.values.copy(tape, said.append)
        elif char == '"':
            whole = yield from self._encoded(said)
        else:
            whole = (yield from JSON.word(tape)) == "null"
            said.append("{}")
        if self.turn.blocks.kind != "tool_use":
            self._pending = "".join(said)
            if whole and self.name is not None:
                self._open(self._pending)
        return whole

    def _encoded(self, said: list[str]) -> Reading[bool]:
        """Arguments encoded once more, as a string: decoded while they come in."""
        inner = Tape()
        copy = JSON.copy(inner, lambda text: self._say(said, text))
        ended: list[bool] = []

        def decode(piece: str) -> None:
            if piece == '"':
                return
            # half of a surrogate pair stays an escape: alone it is no text
            inner.extend(piece if _SURROGATE(piece) else loads(f'"{piece}"', strict=False))
            if ended:
                return
            try:
                next(copy)
            except StopIteration as end:
                ended.append(bool(end.value))

        if not (yield from JSON.string(self.turn.tape, decode, False)):
            return False
        if not ended and not inner.text.strip() and self.turn.blocks.kind != "tool_use":
            said.append("{}")
            return True
        opened = self.turn.blocks.kind == "tool_use" or "".join(said[:1]) == "{"
        return opened and ended == [True] and not inner.rest().strip()

    def _say(self, said: list[str], text: str) -> None:
        blocks = self.turn.blocks
        if blocks.kind == "tool_use":
            blocks.say(text)
        elif self.name is not None and not said and text[:1] == "{":
            self._open(text)
        else:
            said.append(text)

    def _open(self, text: str) -> None:
        self.turn.tape.release()
        self.turn.end_prose()
        self.turn.blocks.open("tool_use", self.name, self.call_id)
        if text:
            self.turn.blocks.say(text)

    def _failed(self) -> Reading[str | None]:
        """A body that ended badly or not at all."""
        turn, tape = self.turn, self.turn.tape
        text = self._lead + tape.release()
        if turn.blocks.kind != "tool_use":
            if tape.final:
                return text if tape.stopped and self.grammar.strict and not self._any else None
            certain = not self.grammar.strict or self._begun
            known = self.grammar.form is Form.ARGUMENTS or (
                certain and self.name is not None and self.name in turn.tools
            )
            if not self._any and not known:
                return text
            if self.name is not None:
                self._open("")
        turn.blocks.close(False)
        if self.grammar.closers:
            again = (Shape(self.opener.head),) if self.opener.head else ()
            yield from tape.seek(Markers([(shape, None) for shape in (*self.grammar.closers, *again)]))
        return None


def _bracket(text: str) -> int:
    """Where the JSON in a marker begins that is its own."""
    found = _BRACKET(text)
    return found.start() if found else len(text)


def _nowhere(_: str) -> None:
    """Takes what is not needed."""
