"""Reports failed validations in OpenAI's wording, with the `param` that clients show.

msgspec: "Expected `float | null`, got `str` - at `$.temperature`"
native:  "Invalid type for 'temperature': expected a decimal, but got a string instead."
"""

import re
from collections.abc import Mapping, Sequence, Sized
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

from schemas.errors import Invalid
from services.frontend.apis.shared.field_types import FORMS
from services.frontend.apis.shared.validation import (
    FailedValidation,
    MissingField,
    OutOfBounds,
    PatternMismatch,
    Reason,
    UnknownValue,
    WrongType,
    parse_message,
    steps_of,
    values_along,
)

Choices: TypeAlias = Mapping[str, Sequence[str]]
"""The values of enumerations, by the names of their fields."""
CacheTtl: TypeAlias = Literal["30m", "12h"]
"""The values of `prompt_cache_options.ttl`, which every API has."""
_UNNAMED = "[...]"
"""msgspec's place of a member of a dictionary."""
_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a decimal",
    "bool": "a boolean",
    "object": "an object",
    "array": "an array",
    "null": "null",
}
_KINDS = {
    str: "str",
    int: "int",
    float: "float",
    bool: "bool",
    dict: "object",
    list: "array",
    type(None): "null",
}
_NUMBERS = {"int": "integer", "float": "decimal"}


class Explainer:
    """Explains failed validations in this wording."""

    def __init__(self, choices: Choices) -> None:
        """`choices`: the values of each enumeration by the name of its field; of a tag by the field
        or list that has the object, such as `content.type`."""
        self._choices = {"prompt_cache_options.ttl": get_args(CacheTtl), **choices}

    def __call__(self, body: bytes, message: str, holder: str = "") -> Invalid:
        """The error for msgspec's message about a body, or about the part of it at `holder`."""
        failed = parse_message(message)
        field_path = (holder + failed.path).removeprefix(".")
        if isinstance(failed.reason, MissingField):
            return missing_parameter(f"{field_path}.{failed.reason.name}".removeprefix("."))
        if not field_path:
            return Invalid("The request body must be a JSON object.", code="invalid_type")

        if failed.is_key or field_path.endswith(_UNNAMED):
            members = values_along(body, steps_of(failed.path.removesuffix(_UNNAMED)))[-1]
            name, value = _member(members, failed.reason, is_key=failed.is_key)
            field_path = f"{field_path.removesuffix(_UNNAMED)}.{name}"
            return _explain_value(field_path, failed, value, self._choices)
        value = None
        if isinstance(failed.reason, OutOfBounds):
            value = values_along(body, failed.steps)[-1]
        return _explain_value(field_path, failed, value, self._choices)


def _explain_value(
    field_path: str, failed: FailedValidation, value: Any, choices: Choices
) -> Invalid:
    """The error for the value at a place; `value` None: unknown."""
    match failed.reason:
        case OutOfBounds() as bound:
            return _out_of_bounds(field_path, bound, value)
        case PatternMismatch(pattern):
            return _mismatch(field_path, pattern)
        case WrongType(expected, got) if got:
            return _wrong_type(field_path, expected, got)
        case UnknownValue(unknown):
            supported = _choices_at(field_path, choices)
            if supported:
                return invalid_value(unknown, field_path, supported)
    return Invalid(
        f"Invalid value for '{field_path}': {failed.text}.", param=field_path, code="invalid_value"
    )


def choices_of(*owners: type) -> dict[str, Sequence[str]]:
    """Returns the values of each enumeration among the fields of these Structs, for `Explainer`."""
    choices: dict[str, Sequence[str]] = {}
    for owner in owners:
        for name, hint in get_type_hints(owner).items():
            literals = _literals(hint)
            if literals:
                choices[name] = literals
    return choices


def _literals(hint: Any) -> list[str]:
    literals: list[str] = []
    for argument in get_args(hint):
        literals += [argument] if isinstance(argument, str) else _literals(argument)
    return literals


def missing_parameter(field_path: str) -> Invalid:
    """The error for a missing field."""
    return Invalid(
        f"Missing required parameter: '{field_path}'.",
        param=field_path,
        code="missing_required_parameter",
    )


def invalid_value(value: str, field_path: str, choices: Sequence[str]) -> Invalid:
    """The error for an unknown value."""
    values = enumerated([f"'{choice}'" for choice in choices], "and")
    return Invalid(
        f"Invalid value: '{value}'. Supported values are: {values}.",
        param=field_path,
        code="invalid_value",
    )


def unknown_parameter(name: str) -> Invalid:
    """The error for a field that Chat Completions or Completions lacks."""
    if name in FORMS:
        return unsupported(name)
    return Invalid(
        f"Unrecognized request argument supplied: {name}", param=name, code="unknown_parameter"
    )


def unsupported(field_path: str, why: str = "is not supported by this server") -> Invalid:
    """The error for a feature that this server lacks."""
    return Invalid(f"'{field_path}' {why}.", param=field_path, code="unsupported_value")


def out_of_range(field_path: str, kind: str, sign: str, limit: str, value: object) -> Invalid:
    """The error for an `integer` or `decimal` that is not `sign` (`<=`, `>=`, …) its limit. `value`
    None: unknown."""
    expected = f"a value {sign} {limit}"
    if value is not None:
        expected += f", but got {value} instead"
    side = "above max" if sign in ("<=", "<") else "below min"
    return Invalid(
        f"Invalid '{field_path}': {kind} {side}imum value. Expected {expected}.",
        param=field_path,
        code=f"{kind}_{side.replace(' ', '_')}_value",
    )


def enumerated(words: Sequence[str], last: str) -> str:
    """The words as an English enumeration."""
    if len(words) < 3:
        return f" {last} ".join(words)
    return f"{', '.join(words[:-1])}, {last} {words[-1]}"


def _wrong_type(field_path: str, expected: Sequence[str], got: str) -> Invalid:
    kinds = [_NAMES.get(kind, kind) for kind in expected]
    return Invalid(
        f"Invalid type for '{field_path}': expected {enumerated(kinds, 'or')}, but got "
        f"{_NAMES.get(got, got)} instead.",
        param=field_path,
        code="invalid_type",
    )


def _member(members: Any, reason: Reason, *, is_key: bool) -> tuple[str, Any]:
    """The name and the value of the invalid member; for an invalid key, the key twice."""
    if not isinstance(members, dict):
        return "*", None
    for name, value in members.items():
        faulty = name if is_key else value
        if _applies_to(reason, faulty):
            return name, faulty
    return "*", None


def _applies_to(reason: Reason, value: Any) -> bool:
    """Whether the reason holds for a value of a dictionary."""
    match reason:
        case OutOfBounds(limit=limit):
            return isinstance(value, str) and len(value) > int(limit)
        case WrongType(got=got):
            return _KINDS.get(type(value)) == got
    return False


def _out_of_bounds(field_path: str, bound: OutOfBounds, value: Any) -> Invalid:
    kind = _NUMBERS.get(bound.kind)
    if kind:
        return out_of_range(field_path, kind, bound.sign, bound.limit, value)
    return _out_of_length(
        field_path, bound.kind.replace("str", "string"), bound.sign, bound.limit, value
    )


def empty_array(field_path: str) -> Invalid:
    """The error for an array that needs an item."""
    return _out_of_length(field_path, "array", ">=", "1", [])


def _out_of_length(field_path: str, kind: str, sign: str, limit: str, value: object) -> Invalid:
    """The error for a `string`, `array` or `object` that is too long or too short. `value` None:
    unknown."""
    article = "a" if kind == "string" else "an"
    size = len(value) if isinstance(value, Sized) else None
    got = f"{article} {kind} with length {size}"
    if kind == "object":
        problem = "too many properties"
        amount = f"at most {limit} properties"
        code = "object_above_max_properties"
        got = f"an object with {size} properties"
    elif sign == ">=" and size == 0:
        problem = f"empty {kind}"
        amount = f"minimum length {limit}"
        code = f"empty_{kind}"
        got = f"an empty {kind}"
    elif sign in ("<=", "<"):
        problem = f"{kind} too long"
        amount = f"maximum length {limit}"
        code = f"{kind}_above_max_length"
    else:
        problem = f"{kind} too short"
        amount = f"minimum length {limit}"
        code = f"{kind}_below_min_length"
    expected = f"Expected {article} {kind} with {amount}"
    if size is not None:
        expected += f", but got {got} instead"
    return Invalid(f"Invalid '{field_path}': {problem}. {expected}.", param=field_path, code=code)


def _mismatch(field_path: str, pattern: str) -> Invalid:
    expected = f"Expected a string that matches the pattern '{pattern}'."
    return Invalid(
        f"Invalid '{field_path}': string does not match pattern. {expected}",
        param=field_path,
        code="invalid_value",
    )


def _choices_at(field_path: str, choices: Choices) -> Sequence[str]:
    names = re.sub(r"\[\d+\]", "", field_path).split(".")
    return choices.get(".".join(names[-2:])) or choices.get(names[-1]) or ()
