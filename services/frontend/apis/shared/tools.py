"""Parts of tools that several APIs have: built-in tools, grammars of freeform tools, and the input
of a freeform tool in the JSON that the model writes.

Grammars are checked as by OpenAI: with llguidance where it is installed, else roughly. The model
sees a freeform tool as a function with one string, `input`; the client receives that string,
streamed.

    {"input": "*** Begin Patch\\n…"}      →      *** Begin Patch
                                                …
"""

import re
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec
from msgspec import Struct

from schemas.conversation import Grammar
from schemas.errors import Invalid
from services.frontend.apis.shared.surrogates import mend_surrogates
from services.runtime.long_work import long_work

MAX_GRAMMARS = 32
"""Limit of freeform tools with a grammar in a request. Checking one takes a millisecond."""
MAX_GRAMMAR_CHARS = 10_000
MAX_COLONS = 512
"""Limits of a grammar. llguidance holds the interpreter's lock while it reads one, and overflows
the stack, which ends the process, at a chain of some 3,000 rules. Each rule has a colon."""
_CACHED_GRAMMARS = 256
_START = re.compile(r"^[ \t]*[?!]{0,2}start[ \t]*(?:\.\d+)?[ \t]*:", re.MULTILINE)
_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_ANY_HEAD = re.compile(r'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*"', re.DOTALL)
_PIECE = re.compile(
    r"""
    [^"\\]+
    | \\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}
    | \\u[0-9a-fA-F]{4}
    | \\["\\/bfnrt]
    | (?P<not_json> \\[^"\\/bfnrtu] | \\u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F]) )
    | "
    """,
    re.VERBOSE,
)
_PARTIAL_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}(\\(u[0-9a-fA-F]{0,3})?)?")
_LONE_HALF = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


class BuiltInTool(Struct, frozen=True):
    """A tool that its vendor's models use without a schema: how others see it."""

    description: str
    properties: dict[str, Any]
    required: tuple[str, ...] = ()

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return {
            "type": "object",
            "properties": self.properties,
            "required": list(self.required),
        }


def checked_grammar(syntax: str, definition: str, field_path: str, earlier: int = 0) -> Grammar:
    """Checks a grammar. Raises Invalid, and LongWork for a new grammar on the event loop.

    Args:
        field_path: the field of its definition.
        earlier: the number of grammars before it in the request.
    """
    if earlier >= MAX_GRAMMARS:
        problem = f"a request may have at most {MAX_GRAMMARS} tools with a grammar"
    elif _is_too_large(syntax, definition):
        problem = (
            f"a grammar may have at most {MAX_GRAMMAR_CHARS} characters and {MAX_COLONS} rules"
        )
    else:
        problem = _problem(syntax, definition)
    if problem:
        raise Invalid(
            f"Invalid value for '{field_path}': {problem}", param=field_path, code="invalid_value"
        )
    return Grammar(syntax, definition)


def _is_too_large(syntax: str, definition: str) -> bool:
    if len(definition) > MAX_GRAMMAR_CHARS:
        return True
    return syntax == "lark" and definition.count(":") > MAX_COLONS


@lru_cache(_CACHED_GRAMMARS)
def _problem(syntax: str, definition: str) -> str:
    """The defect of a grammar; "" for a valid one. Cached, since agents send the same grammar with
    every request, also among the input items, which no memo of tools has."""
    long_work()
    if find_spec("llguidance") is None:
        return _rough_problem(syntax, definition)
    matcher = import_module("llguidance").LLMatcher
    make = matcher.grammar_from_lark if syntax == "lark" else matcher.grammar_from_regex
    first, *more = str(matcher.validate_grammar(make(definition))).splitlines() or [""]
    reason = next((line for line in more if line.startswith("error: ")), "")
    return f"{first} {reason}".strip()


def _rough_problem(syntax: str, definition: str) -> str:
    if syntax == "lark":
        return "" if _START.search(definition) else "no start rule text"
    try:
        re.compile(definition)
    except (re.error, RecursionError, OverflowError) as error:
        return f"regex parse error: {error}"
    return ""


class FreeformInput:
    """Reads the arguments of one call piece by piece.

    The concatenation of the results of `feed` and `end` does not depend on how the text is split.
    `end` returns an input that has another name or follows other members, and text in another form
    unchanged.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._in_string = False
        self._over = False

    def feed(self, text: str) -> str:
        """Returns the next part of the input."""
        if self._over:
            return ""
        self._pending += text
        if not self._in_string:
            head = _HEAD.match(self._pending)
            if head is None:
                return ""
            self._pending = self._pending[head.end() :]
            self._in_string = True
        return self._read()

    def end(self) -> str:
        """Returns the rest at the end of the call; "" for a call that was cut off within the
        input."""
        if self._in_string or self._over:
            return ""
        try:
            arguments = msgspec.json.decode(mend_surrogates(self._pending.encode()))
        except (msgspec.DecodeError, RecursionError):
            return self._end_of_other_text()
        return _input_among(arguments, self._pending)

    def _end_of_other_text(self) -> str:
        """The input in text that is not JSON: the string of its only member, which may have wrong
        escapes, else the text itself."""
        whole = self._pending
        head = _ANY_HEAD.match(whole)
        if head is None:
            return whole
        self._pending = whole[head.end() :]
        text = self._read()
        is_only_member = self._over and self._pending.strip() == "}"
        return text if is_only_member else whole

    def _read(self) -> str:
        """Reads all that is complete of the string."""
        pending = self._pending
        offset = 0
        out: list[str] = []
        while True:
            piece = _PIECE.match(pending, offset)
            if piece is None:
                break
            text = piece.group()
            if text == '"':
                self._over = True
                self._pending = pending[piece.end() :]
                return "".join(out)
            if _LONE_HALF.fullmatch(text):
                if _PARTIAL_PAIR.fullmatch(pending, offset):
                    break
                text = "\\ufffd"
            if text[0] == "\\" and not piece["not_json"]:
                text = msgspec.json.decode(f'"{text}"', type=str)
            out.append(text)
            offset = piece.end()
        self._pending = pending[offset:]
        return "".join(out)


def _input_among(arguments: Any, whole: str) -> str:
    """The text that is a freeform tool's input: the member `input`, or the only text; "" without
    arguments; `whole`, the JSON of all, where no text or several are meant."""
    if isinstance(arguments, str):
        return arguments
    if arguments is None:
        return ""
    if not isinstance(arguments, dict):
        return whole
    texts = {name: value for name, value in arguments.items() if isinstance(value, str)}
    if "input" in texts:
        return texts["input"]
    if len(texts) == 1:
        return "".join(texts.values())
    has_arguments = any(value is not None for value in arguments.values())
    return whole if has_arguments else ""


def freeform_input(arguments: str) -> str:
    """The raw input in the complete arguments of a call."""
    reader = FreeformInput()
    return reader.feed(arguments) + reader.end()
