"""Values: JSON and Python literals, copied out as JSON while they come in.

The copy is JSON at every moment: whatever was said is a prefix of a JSON text, however the input goes on. It keeps the
writer's spelling (blanks, number forms, key order) and repairs only what has one reading: a trailing comma, a raw
control character or a stray backslash in a string, Python's spelling of constants and quotes.
"""

import re
from typing import ClassVar, Final

from services.parser.coercion import number_text
from services.parser.shapes import Shape
from services.parser.tape import Reading, Say, Tape, escaped

_MAX_DEPTH: Final = 256
_MAX_SCALAR: Final = 4096
_SCALAR: Final = re.compile(r"[\w.+-]{0,4096}+")
_CLOSERS: Final = {"{": ("}", "}"), "[": ("]", "]"), "(": (")", "]")}
CONSTANTS: Final = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_HEX: Final = re.compile(r"[0-9a-fA-F]+\Z")


class Values:
    """JSON, read leniently."""

    quotes: ClassVar[str] = "\"'"
    openers: ClassVar[str] = "{["
    object: ClassVar[Shape] = Shape("{", then=('"', "}", "'"))
    """How an object begins, as far as to be sure of it."""

    def copy(self, tape: Tape, say: Say, live: bool = False) -> Reading[bool]:
        """Copies the value that begins here; True once it has ended.

        False: it is no value (`tape` stands where that showed), or the input ended in it. `live` says that `say` writes
        straight into the open block, so that plain text of a string may go there without passing this reader.
        """
        stack: list[tuple[str, str]] = []
        comma = ""
        due = True
        while True:
            space = yield from tape.blanks()
            char = (yield from tape.peek()) or " "
            if due and not (stack and char == stack[-1][0]):
                if stack:
                    say(comma + space)
                    if stack[-1][0] == "}" and not (yield from self.key(tape, say)):
                        return False
                char = yield from tape.peek()
                if char and char in self.openers and len(stack) < _MAX_DEPTH:
                    tape.position += 1
                    stack.append(_CLOSERS[char])
                    say("{" if char == "{" else "[")
                    comma = ""
                    continue
                if not (yield from self.scalar(tape, say, live, stack[-1][0] if stack else "")):
                    return False
                due = False
            elif char == "," and not due:
                tape.position += 1
                comma, due = space + ",", True
                continue
            elif stack and char == stack[-1][0]:
                tape.position += 1
                say(space + stack.pop()[1])
                due = False
            else:
                return False
            if not stack:
                return True

    def key(self, tape: Tape, say: Say) -> Reading[bool]:
        """A key and its colon; leaves the tape at the value."""
        char = yield from tape.peek()
        if not char or char not in self.quotes:
            return False
        if not (yield from self.string(tape, say, False)):
            return False
        return (yield from self.colon(tape, say))

    def colon(self, tape: Tape, say: Say) -> Reading[bool]:
        """A colon with the blanks around it."""
        before = yield from tape.blanks()
        if (yield from tape.peek()) != ":":
            return False
        tape.position += 1
        say(before + ":" + (yield from tape.blanks()))
        return True

    def scalar(self, tape: Tape, say: Say, live: bool, closer: str) -> Reading[bool]:
        """A string, number or constant; `closer` ends what it stands in."""
        char = yield from tape.peek()
        if char and char in self.quotes:
            return (yield from self.string(tape, say, live))
        word = yield from self.word(tape)
        text = CONSTANTS.get(word) or number_text(word, True)
        cut = tape.final and tape.position == len(tape.text) and word not in CONSTANTS
        if text is None or (cut and text != word):  # a number that ends here, half written, is not spelled out
            tape.position -= len(word)
            return False
        say(text)
        return True

    def word(self, tape: Tape) -> Reading[str]:
        """Letters and digits up to what cannot belong to a number or constant."""
        while True:
            found = _SCALAR.match(tape.text, tape.position)
            assert found is not None
            if found.end() < len(tape.text) or tape.final or len(found[0]) == _MAX_SCALAR:
                tape.position = found.end()
                return found[0]
            yield

    def string(self, tape: Tape, say: Say, live: bool) -> Reading[bool]:
        """A quoted string, copied as it comes."""
        quote = tape.text[tape.position]
        tape.position += 1
        plain, trigger = _PLAIN[quote]
        say('"')
        while True:
            found = plain.match(tape.text, tape.position)
            assert found is not None
            if found[0]:
                say(found[0])
                tape.position = found.end()
            if tape.position == len(tape.text):
                if tape.final:
                    return False
                if live:
                    tape.trigger, tape.escape = trigger, False
                yield
                tape.trigger = None
                continue
            char = tape.text[tape.position]
            if char == "\\":
                if not (yield from self.escape(tape, say)):
                    return False
            elif char == quote and (yield from self.closes(tape, quote)):
                tape.position += len(quote)
                say('"')
                return True
            else:
                tape.position += 1
                say(escaped(char))

    def closes(self, tape: Tape, quote: str) -> Reading[bool]:
        """The quote that stands here ends the string."""
        return True
        yield

    def escape(self, tape: Tape, say: Say) -> Reading[bool]:
        """A backslash and what it escapes; False if the input ends in it."""
        pair = yield from tape.peek(2)
        if len(pair) < 2:
            return False
        if pair[1] == "u":
            code = yield from tape.peek(6)
            if len(code) == 6 and _HEX.match(code, 2):
                pair = code
            elif tape.final and len(code) < 6:
                return False
        if len(pair) == 6 or pair[1] in '"\\/bfnrt':
            tape.position += len(pair)
            say(pair)
        elif pair[1] == "'":
            tape.position += 2
            say("'")
        else:
            tape.position += 1
            say("\\\\")
        return True


_PLAIN: Final = {
    quote: (
        re.compile(rf'[^{quote}"\\\x00-\x1f]*+'),
        re.compile(rf'[{quote}"\\\x00-\x1f]').search,
    )
    for quote in "\"'"
}
_SIMPLE: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_WIDE: Final = {"x": 2, "u": 4, "U": 8}


class PythonValues(Values):
    """Python literals. A quote inside a string that was left unescaped is text unless a delimiter follows it."""

    openers: ClassVar[str] = "{[("

    def closes(self, tape: Tape, quote: str) -> Reading[bool]:
        """A quote ends a string if `,`, a bracket, a colon or a line's end comes next."""
        count = 2
        while True:
            ahead = yield from tape.peek(count)
            after = ahead[1:].lstrip(" \t")
            if after:
                return after[0] in ",)]}:;\r\n"
            if len(ahead) < count or count > 64:
                return True
            count += 1

    def escape(self, tape: Tape, say: Say) -> Reading[bool]:
        """An escape as Python has it; an unknown one is a backslash."""
        pair = yield from tape.peek(2)
        if len(pair) < 2:
            return False
        char = pair[1]
        if char in _WIDE:
            code = (yield from tape.peek(2 + _WIDE[char]))[2:]
            if len(code) == _WIDE[char] and _HEX.match(code) and int(code, 16) < 0x110000:
                tape.position += 2 + len(code)
                point = int(code, 16)
                say(f"\\u{point:04x}" if char == "u" or 0xD800 <= point < 0xE000 else escaped(chr(point)))
                return True
            if tape.final and len(code) < _WIDE[char]:
                return False
        tape.position += 2
        say(escaped(_SIMPLE.get(char, char if char in "\\'\"" else pair)))
        return True


JSON: Final = Values()
PYTHON: Final = PythonValues()


def literal(text: str) -> str | None:
    """A whole object, array or other value in `text`, JSON or Python, as JSON; None if it is none."""
    tape = Tape(text)
    tape.final = True
    said: list[str] = []
    reading = JSON.copy(tape, said.append)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return "".join(said) if end.value and not tape.rest().strip() else None
