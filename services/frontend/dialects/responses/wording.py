"""What msgspec says of a malformed request, in the words of the native API.

msgspec: "Expected `float | null`, got `str` - at `$.temperature`"
native:  "Invalid type for 'temperature': expected a number, but got a string instead."
"""

import re
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Raw

from schemas.errors import Invalid
from services.frontend.dialects.responses import wire

T = TypeVar("T")

_AT = re.compile(r"^(?P<what>.*?)(?: - at (?:`[^`]*` in )?`\$(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_EXPECTED = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_VALUE = re.compile(r"Invalid (?:enum )?value '?(.*?)'?$", re.DOTALL)
_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "object": "an object",
    "array": "an array",
    "null": "null",
}
_FIELDS: dict[str, tuple[type, str]] = {
    "effort": (wire.Reasoning, "effort"),
    "summary": (wire.Reasoning, "summary"),
    "generate_summary": (wire.Reasoning, "generate_summary"),
    "context": (wire.Reasoning, "context"),
    "verbosity": (wire.TextConfig, "verbosity"),
    "truncation": (wire.Body, "truncation"),
    "role": (wire.Message, "role"),
    "execution": (wire.Tool, "execution"),
    "mode": (wire.ToolChoice, "mode"),
}


def explain(body: bytes, message: str, prefix: str = "") -> Invalid:
    """The native error for a failed validation. `prefix`: where in the request the validated part stands."""
    match = _AT.match(message)
    what, path = (match["what"], match["path"] or "") if match else (message, "")
    place = (prefix + path).removeprefix(".")
    missing = _MISSING.match(what)
    if missing:
        return missing_parameter(f"{place}.{missing[1]}".removeprefix("."))
    expected = _EXPECTED.match(what)
    if expected:
        if not place:
            return Invalid("The request body must be a JSON object.", code="invalid_type")
        wanted = [_NAMES.get(kind, kind) for kind in expected[1].split(" | ") if kind != "null"]
        got = _NAMES.get(expected[2], expected[2])
        return Invalid(
            f"Invalid type for '{place}': expected {_one_of(wanted, 'or')}, but got {got} instead.",
            param=place,
            code="invalid_type",
        )
    value = _VALUE.match(what)
    choices = _choices(place)
    if value and choices:
        return invalid_value(value[1], place, choices)
    return Invalid(
        f"Invalid value for '{place}': {what}." if place else what, param=place or None, code="invalid_value"
    )


def convert(decoder: msgspec.json.Decoder[T], raw: Raw | bytes, place: str) -> T:
    """A part of the request as `decoder`'s type. Raises Invalid that names the place."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise explain(bytes(raw), str(error), place) from None
    except RecursionError:
        raise Invalid(f"'{place}' is nested too deeply.", param=place) from None


def missing_parameter(place: str) -> Invalid:
    """A field that has to be there."""
    return Invalid(f"Missing required parameter: '{place}'.", param=place, code="missing_required_parameter")


def invalid_value(value: str, place: str, choices: Sequence[str]) -> Invalid:
    """A value that is none of those known."""
    quoted = [f"'{choice}'" for choice in choices]
    return Invalid(
        f"Invalid value: '{value}'. Supported values are: {_one_of(quoted, 'and')}.", param=place, code="invalid_value"
    )


def unsupported(place: str, why: str = "is not supported by this server") -> Invalid:
    """Something that exists, but not here."""
    return Invalid(f"'{place}' {why}.", param=place, code="unsupported_value")


def refuse(place: str, why: str = "is not supported by this server") -> NoReturn:
    """Raises `unsupported`."""
    raise unsupported(place, why)


def _choices(place: str) -> list[str]:
    last = place.rpartition(".")[2]
    if last == "type" and ".content[" in place + "[":
        return [str(kind.__struct_config__.tag) for kind in get_args(wire.Part)]
    if last == "type" and "format" in place:
        return ["text", "json_object", "json_schema"]
    owner = _FIELDS.get(last)
    if owner is None:
        return []
    return list(_literals(get_type_hints(owner[0])[owner[1]]))


def _literals(hint: Any) -> list[str]:
    found: list[str] = []
    for argument in get_args(hint):
        found += [argument] if isinstance(argument, str) else _literals(argument)
    return found


def _one_of(words: Sequence[str], last: str) -> str:
    if len(words) < 2:
        return "".join(words)
    if len(words) == 2:
        return f"{words[0]} {last} {words[1]}"
    return f"{', '.join(words[:-1])}, {last} {words[-1]}"
