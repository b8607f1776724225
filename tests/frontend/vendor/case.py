"""What becomes of a request with one remarkable value.

The tables have a case by the SDK's type that has the field; "" has fields of no type. An outcome:

refused     400 in the API's form, with this message, `param` and code
noted       200; a response header names the field
declared    200, though the vendor refuses it, or gives it another effect: a phrase of docs/differences.md
            or of the API's page
accepted    200
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

LONG = "x" * 300
OPEN_SCHEMA = {
    "oneOf": [{"type": "object"}, {"type": "object", "properties": {"ä b": {"minLength": 3}}}]
}
AN_IMAGE = (
    "Expected a base64-encoded data URL with an image MIME type "
    "(e.g. 'data:image/png;base64,aW1nIGJ5dGVzIGhlcmU=')"
)
PATTERN = (
    "string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
)
PHRASES = {
    "missing_required_parameter": "Missing required parameter: '{at}'.",
    "invalid_type": "Invalid type for '{at}': ",
    "integer_above_max_value": "Invalid '{at}': integer above maximum value. Expected a value <= ",
    "integer_below_min_value": "Invalid '{at}': integer below minimum value. Expected a value >= ",
    "decimal_above_max_value": "Invalid '{at}': decimal above maximum value. Expected a value <= ",
    "decimal_below_min_value": "Invalid '{at}': decimal below minimum value. Expected a value >= ",
    "string_above_max_length": "Invalid '{at}': string too long. Expected a string with maximum length ",
}
"""How the message of a refusal by an API of OpenAI begins, by its code."""
Outcome: TypeAlias = Literal["refused", "noted", "declared", "accepted"]


@dataclass(frozen=True, eq=False)
class Case:
    """What becomes of a request. No two are equal: a table may have the same outcome twice."""

    field: str
    """The field of the SDK's type."""
    outcome: Outcome
    text: str = ""
    """Of a refusal by Messages: the message, or its beginning and "..."; by an API of OpenAI: the
    part after the phrase of the code. Of a note: the name; of a difference: the phrase."""
    at: str = ""
    """The `param` of a refusal."""
    code: str | None = None
    wrap: Callable[[Any], Any] | None = None
    """Makes the request of the table's value, where it is not one."""


Cases: TypeAlias = dict[str, dict[Case, Any]]
"""By the name of the SDK's type: requests, by what becomes of them."""


def refused(field: str, code: str | None = None, *, at: str = "", text: str = "") -> Case:
    """An API of OpenAI refuses the request; `at`: the place, where it is not the field."""
    return Case(field, "refused", text, at or field, code)


def missing(field: str, at: str = "") -> Case:
    return refused(field, "missing_required_parameter", at=at)


def invalid(field: str, at: str = "", *, text: str = "") -> Case:
    return refused(field, "invalid_value", at=at, text=text)


def mistyped(field: str, at: str = "", *, text: str = "") -> Case:
    return refused(field, "invalid_type", at=at, text=text)


def unsupported(field: str, at: str = "", *, text: str = "") -> Case:
    return refused(field, "unsupported_value", at=at, text=text)


def noted(field: str, name: str) -> Case:
    """The field has no effect, which a header names."""
    return Case(field, "noted", name)


def declared(field: str, phrase: str) -> Case:
    """The answer is another one than the vendor's, as the docs declare."""
    return Case(field, "declared", phrase)


def accepted() -> Case:
    """The request is near to one that is refused."""
    return Case("", "accepted")
