"""Reads a call's arguments, which clients spell in many ways, as an object."""

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from schemas.conversation import Call

_UNPARSED = "__unparsed"
Read: TypeAlias = Callable[[str], Any]


def arguments_of(call: Call) -> dict[str, Any]:
    """A call's arguments as an object, so that a prompt does not depend on how the client spells JSON."""
    return read_arguments(call.arguments, freeform=call.kind == "custom")


def read_arguments(
    text: str, *, freeform: bool, number: Read | None = None, constant: Read | None = None
) -> dict[str, Any]:
    """Arguments as an object. `freeform`: the text is a freeform tool's `input`, unless it is an object that holds it.
    Text that is no JSON object is kept whole under one name. `number` and `constant` read JSON's numbers and NaN."""
    value: Any = {}
    try:
        if text.strip():
            value = json.loads(text, parse_int=number, parse_float=number, parse_constant=constant)
    except (ValueError, RecursionError):
        value = None
    if freeform and not (isinstance(value, dict) and value.keys() == {"input"}):
        return {"input": text}
    return value if isinstance(value, dict) else {_UNPARSED: text}
