"""Reports failed validations in OpenAI's wording, with the `param` that clients show.

msgspec: "Expected `float | null`, got `str` - at `$.temperature`"
native:  "Invalid type for 'temperature': expected a decimal, but got a string instead."
"""

import re
from collections.abc import Mapping, Sequence, Sized
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

from schemas.errors import Invalid
from services.frontend.apis.shared.decode import (
    FORMS,
    MISSING,
    Explain,
    parse_validation_message,
    steps_of,
    values_along,
)

Choices: TypeAlias = Mapping[str, Sequence[str]]
"""The values of enumerations, by the names of their fields."""
CacheTtl: TypeAlias = Literal["30m", "12h"]
"""The values of `prompt_cache_options.ttl`, which every API has."""
_UNNAMED = "[...]"
"""msgspec's place of a member of a dictionary."""
_KEY = " - at `key` in `"

_TYPES = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_BOUND = re.compile(r"Expected `(?P<kind>\w+)`(?: of length)? (?P<sign><=|>=|<|>) (?P<bound>\S+)")
_PATTERN = re.compile(r"Expected `str` matching regex '(.*)'", re.DOTALL)
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


def explainer(choices: Choices) -> Explain:
    """Explains errors in this wording. `choices`: the values of each enumeration by the name
    of its field; of a tag by the field or list that has the object, such as `content.type`."""
    choices = {"prompt_cache_options.ttl": get_args(CacheTtl), **choices}

    def explain(body: bytes, message: str) -> Invalid:
        what, path = parse_validation_message(message)
        field_path = path.removeprefix(".")
        missing = MISSING.match(what)
        if missing:
            return missing_parameter(f"{field_path}.{missing[1]}".removeprefix("."))
        if not field_path:
            return Invalid("The request body must be a JSON object.", code="invalid_type")

        is_key = _KEY in message
        if is_key or field_path.endswith(_UNNAMED):
            holder = field_path.removesuffix(_UNNAMED)
            members = values_along(body, steps_of(f".{holder}"))[-1]
            name, value = _member(members, what, is_key=is_key)
            return _explain_value(f"{holder}.{name}", what, value, choices)
        value = None
        if _BOUND.match(what):
            value = values_along(body, steps_of(path))[-1]
        return _explain_value(field_path, what, value, choices)

    return explain


def _explain_value(field_path: str, what: str, value: Any, choices: Choices) -> Invalid:
    """The error for the value at a place. `what`: msgspec's reason; `value` None: unknown."""
    bound = _BOUND.match(what)
    if bound:
        return _out_of_bounds(field_path, bound, value)
    pattern = _PATTERN.match(what)
    if pattern:
        return _mismatch(field_path, pattern[1])
    types = _TYPES.match(what)
    if types:
        return _wrong_type(field_path, types[1], types[2])
    supported = _choices_at(field_path, choices)
    unknown = _VALUE.match(what)
    if supported and unknown:
        return invalid_value(unknown["value"], field_path, supported)
    return Invalid(
        f"Invalid value for '{field_path}': {what}.", param=field_path, code="invalid_value"
    )


def choices_of(*owners: type) -> dict[str, Sequence[str]]:
    """Returns the values of each enumeration among the fields of these Structs, for `explainer`."""
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


def _wrong_type(field_path: str, expected: str, got: str) -> Invalid:
    kinds = [_NAMES.get(kind, kind) for kind in expected.split(" | ") if kind != "null"]
    return Invalid(
        f"Invalid type for '{field_path}': expected {enumerated(kinds, 'or')}, but got "
        f"{_NAMES.get(got, got)} instead.",
        param=field_path,
        code="invalid_type",
    )


def _member(members: Any, what: str, *, is_key: bool) -> tuple[str, Any]:
    """The name and the value of the invalid member; for an invalid key, the key twice."""
    if not isinstance(members, dict):
        return "*", None
    bound = _BOUND.match(what)
    types = _TYPES.match(what)
    for name, value in members.items():
        faulty = name if is_key else value
        if bound and isinstance(faulty, str) and len(faulty) > int(bound["bound"]):
            return name, faulty
        if types and _KINDS.get(type(faulty)) == types[2]:
            return name, faulty
    return "*", None


def _out_of_bounds(field_path: str, bound: re.Match[str], value: Any) -> Invalid:
    limit = bound["bound"].removesuffix(".0")
    kind = _NUMBERS.get(bound["kind"])
    if kind:
        return out_of_range(field_path, kind, bound["sign"], limit, value)
    return _out_of_length(
        field_path, bound["kind"].replace("str", "string"), bound["sign"], limit, value
    )


def _out_of_length(field_path: str, kind: str, sign: str, limit: str, value: object) -> Invalid:
    """The error for a `string`, `array` or `object` that is too long or too short."""
    article = "a" if kind == "string" else "an"
    size = len(value) if isinstance(value, Sized) else 0
    got = f"{article} {kind} with length {size}"
    if kind == "object":
        what = "too many properties"
        amount = f"at most {limit} properties"
        code = "object_above_max_properties"
        got = f"an object with {size} properties"
    elif sign == ">=" and not size:
        what = f"empty {kind}"
        amount = f"minimum length {limit}"
        code = f"empty_{kind}"
        got = f"an empty {kind}"
    elif sign in ("<=", "<"):
        what = f"{kind} too long"
        amount = f"maximum length {limit}"
        code = f"{kind}_above_max_length"
    else:
        what = f"{kind} too short"
        amount = f"minimum length {limit}"
        code = f"{kind}_below_min_length"
    expected = f"Expected {article} {kind} with {amount}, but got {got} instead."
    return Invalid(f"Invalid '{field_path}': {what}. {expected}", param=field_path, code=code)


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
