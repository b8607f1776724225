"""Reads a call's arguments, which clients spell in many ways, as an object."""

import json
from collections.abc import Callable
from typing import Any

from schemas.conversation import Call

_UNPARSED = "__unparsed"


def arguments_of(call: Call) -> dict[str, Any]:
    """A call's arguments as an object, so that a prompt does not depend on how the client spells JSON."""
    return read_arguments(call.arguments, freeform=call.kind == "custom")


def read_arguments(text: str, *, freeform: bool, decode: Callable[[str], Any] = json.loads) -> dict[str, Any]:
    """Arguments as an object. `freeform`: the text is a freeform tool's `input`, unless it is an object that holds it.
    Text that is not a JSON object is kept whole under one name. `decode` reads the JSON, and raises as `json.loads`."""
    value: Any = {}
    try:
        if text.strip():
            value = decode(text)
    except (ValueError, RecursionError):
        value = None
    if freeform and not (isinstance(value, dict) and value.keys() == {"input"}):
        return {"input": text}
    return value if isinstance(value, dict) else {_UNPARSED: text}
