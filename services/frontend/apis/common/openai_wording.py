"""Failed validations in the words of OpenAI's APIs, with the `param` that clients show.

msgspec: "Expected `float | null`, got `str` - at `$.temperature`"
native:  "Invalid type for 'temperature': expected a decimal, but got a string instead."
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from schemas.errors import Invalid
from services.frontend.apis.common.decode import MISSING, located, steps_of, values_along

_TYPES = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_BOUND = re.compile(r"Expected `(?P<kind>int|float|array|str)`(?: of length)? (?P<sign><=|>=|<|>) (?P<bound>\S+)")
_VALUE = re.compile(r"Invalid (?:enum )?value '?(?P<value>.*?)'?$", re.DOTALL)
_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a decimal",
    "bool": "a boolean",
    "object": "an object",
    "array": "an array",
    "null": "null",
}
_NUMBERS = {"int": "integer", "float": "decimal"}


def explainer(choices: Mapping[str, Sequence[str]]) -> Callable[[bytes, str], Invalid]:
    """The `explain` of `decode_body`. `choices`: the values of each enumeration, by the name of its field; of a tag by
    the field or list that holds the object, such as `content.type`."""

    def explain(body: bytes, message: str) -> Invalid:
        what, path = located(message)
        place = path.removeprefix(".")
        if missing := MISSING.match(what):
            return missing_parameter(f"{place}.{missing[1]}".removeprefix("."))
        if not place:
            return Invalid("The request body must be a JSON object.", code="invalid_type")
        if bound := _BOUND.match(what):
            return _out_of_bounds(place, bound, values_along(body, steps_of(path))[-1])
        if types := _TYPES.match(what):
            return _wrong_type(place, types[1], types[2])
        known = _known(place, choices)
        if known and (value := _VALUE.match(what)):
            return invalid_value(value["value"], place, known)
        return Invalid(f"Invalid value for '{place}': {what}.", param=place, code="invalid_value")

    return explain


def missing_parameter(place: str) -> Invalid:
    """The error for a missing field."""
    return Invalid(f"Missing required parameter: '{place}'.", param=place, code="missing_required_parameter")


def invalid_value(value: str, place: str, choices: Sequence[str]) -> Invalid:
    """The error for an unknown value."""
    known = one_of([f"'{choice}'" for choice in choices], "and")
    return Invalid(f"Invalid value: '{value}'. Supported values are: {known}.", param=place, code="invalid_value")


def unsupported(place: str, why: str = "is not supported by this server") -> Invalid:
    """The error for a feature that this server lacks."""
    return Invalid(f"'{place}' {why}.", param=place, code="unsupported_value")


def out_of_range(place: str, kind: str, sign: str, limit: str, value: object) -> Invalid:
    """The error for an `integer` or `decimal` that is not `sign` (`<=`, `>=`, …) its limit. `value` None: unknown."""
    where, side = ("above", "max") if sign in ("<=", "<") else ("below", "min")
    got = "" if value is None else f", but got {value} instead"
    return Invalid(
        f"Invalid '{place}': {kind} {where} {side}imum value. Expected a value {sign} {limit}{got}.",
        param=place,
        code=f"{kind}_{where}_{side}_value",
    )


def one_of(words: Sequence[str], last: str) -> str:
    """The words as an English enumeration."""
    if len(words) < 3:
        return f" {last} ".join(words)
    return f"{', '.join(words[:-1])}, {last} {words[-1]}"


def _wrong_type(place: str, expected: str, got: str) -> Invalid:
    kinds = [_NAMES.get(kind, kind) for kind in expected.split(" | ") if kind != "null"]
    return Invalid(
        f"Invalid type for '{place}': expected {one_of(kinds, 'or')}, but got {_NAMES.get(got, got)} instead.",
        param=place,
        code="invalid_type",
    )


def _out_of_bounds(place: str, bound: re.Match[str], value: Any) -> Invalid:
    limit, sign = bound["bound"].removesuffix(".0"), bound["sign"]
    if kind := _NUMBERS.get(bound["kind"]):
        return out_of_range(place, kind, sign, limit, value)
    few, side = ("at most", "above_max") if sign in ("<=", "<") else ("at least", "below_min")
    code = f"{bound['kind'].replace('str', 'string')}_{side}_length"
    return Invalid(f"Invalid '{place}': expected a length of {few} {limit}.", param=place, code=code)


def _known(place: str, choices: Mapping[str, Sequence[str]]) -> Sequence[str]:
    names = re.sub(r"\[\d+\]", "", place).split(".")
    return choices.get(".".join(names[-2:])) or choices.get(names[-1]) or ()
