"""Parses msgspec's message of a failed validation into its reason and its place in the body.

"Expected `float | null`, got `str` - at `$.temperature`": `WrongType(["float"], "str")` at
`.temperature`. Each API has its own wording for a reason.
"""

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

_AT = re.compile(r"^(?P<what>.*?)(?: - at (?:`[^`]*` in )?`\$(?P<path>[^`]*)`)?$", re.DOTALL)
_AT_KEY = " - at `key` in `"
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_TYPES = re.compile(r"Expected `(?P<expected>[^`]*)`(?:, got `(?P<got>[^`]*)`)?")
_BOUND = re.compile(r"Expected `(?P<kind>\w+)`(?: of length)? (?P<sign><=|>=|<|>) (?P<limit>\S+)")
_PATTERN = re.compile(r"Expected `str` matching regex '(.*)'", re.DOTALL)
_VALUE = re.compile(r"Invalid (?:enum )?value '?(?P<value>.*?)'?$", re.DOTALL)


class MissingField(Struct, frozen=True):
    """An object lacks a member."""

    name: str


class WrongType(Struct, frozen=True):
    """A value has another JSON type. Types are in msgspec's words."""

    expected: list[str]
    """The types other than null."""
    got: str
    """"" if unknown, as for the tag of an object."""


class OutOfBounds(Struct, frozen=True):
    """A number, or the length of a value of another kind, is not `sign` (`<=`, `>=`, …) the
    limit."""

    kind: str
    sign: str
    limit: str


class PatternMismatch(Struct, frozen=True):
    """A text does not match a pattern."""

    pattern: str


class UnknownValue(Struct, frozen=True):
    """A value of an enumeration, or the tag of an object."""

    value: str


Reason: TypeAlias = MissingField | WrongType | OutOfBounds | PatternMismatch | UnknownValue | None
"""None: a reason that no API has a wording for."""


class FailedValidation(Struct, frozen=True):
    """Why a body is not valid, and where."""

    reason: Reason
    text: str
    """The reason as msgspec words it."""
    path: str
    """The place in the body: `.messages[0].role`; "" for the body itself."""
    is_key: bool
    """The key of the member is at fault, not its value."""

    @property
    def steps(self) -> list[str]:
        """The names and indices of the path; "..." for any index."""
        return steps_of(self.path)


def parse_message(message: str) -> FailedValidation:
    """Parses the message of a `msgspec.ValidationError`."""
    match = _AT.match(message)
    text = message
    path = ""
    if match is not None:
        text = match["what"]
        path = match["path"] or ""
    return FailedValidation(_reason(text), text, path, is_key=_AT_KEY in message)


def _reason(text: str) -> Reason:
    missing = _MISSING.match(text)
    if missing:
        return MissingField(missing[1])
    bound = _BOUND.match(text)
    if bound:
        return OutOfBounds(bound["kind"], bound["sign"], bound["limit"].removesuffix(".0"))
    pattern = _PATTERN.match(text)
    if pattern:
        return PatternMismatch(pattern[1])
    types = _TYPES.match(text)
    if types:
        expected = [kind for kind in types["expected"].split(" | ") if kind != "null"]
        return WrongType(expected, types["got"] or "")
    unknown = _VALUE.match(text)
    if unknown:
        return UnknownValue(unknown["value"])
    return None


def steps_of(path: str) -> list[str]:
    """The names and indices of a path; "..." for any index."""
    return [name or index or "..." for name, index in _STEP.findall(path)]


def values_along(body: bytes, steps: Iterable[str]) -> list[Any]:
    """The body's value, and the value after each step; None where there is none, or the body is cut
    off or too deep."""
    try:
        values: list[Any] = [msgspec.json.decode(body)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        values = [None]
    for step in steps:
        node = values[-1]
        if isinstance(node, list):
            values.append(node[int(step)] if step.isdigit() and int(step) < len(node) else None)
        else:
            values.append(node.get(step) if isinstance(node, dict) else None)
    return values
