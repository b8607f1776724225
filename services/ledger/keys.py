"""Computes the key under which a turn is found again when its client sends it back.

No two clients send a turn back alike: blank text is dropped, reasoning is dropped, sealed or
joined, text and calls are sorted into two fields, arguments pass through the client's own JSON, and
Claude Code's tools tidy theirs. The key covers what survives: the text without white space, and the
calls by name and value. It only has to find the turn; comparing the turn decides whether it is the
same."""

import hashlib
import json
import math
import re
from collections.abc import Iterable
from typing import Any

from services.templates.tools import read_arguments

DIGEST_BYTES = 16
_CHANGES_DIRECTORY = re.compile(r"\Acd /\S+ && ")


def squeeze(text: str) -> str:
    """The text without any white space."""
    return "".join(text.split())


def canonical_arguments(arguments: str, *, freeform: bool = False) -> str:
    """A call's arguments as text that is the same for every spelling of the same JSON value.

    Numbers are doubles and keys are sorted, since both go through JavaScript's JSON in most
    clients: 1.0 comes back as 1, 2**53 + 1 as 2**53, 1e400 as null, and keys that look like
    integers come first. `freeform`: the text is a freeform tool's input itself, unless it is an
    object that holds it. Never raises: text that is not a JSON object is kept unchanged.
    """
    return _canonical(_value(arguments, freeform=freeform), arguments)


def key_arguments(arguments: str, *, freeform: bool = False) -> str:
    """A call's arguments in its turn's key: canonical, and without what Claude Code changes when it
    sends a call back (docs/clients.md). Claude Code removes `cd` into the working directory from
    the start of a command and white space from the ends of lines that it writes, and fills in flags
    that are off.
    """
    values = _value(arguments, freeform=freeform)
    tidied = {name: _tidied(name, value) for name, value in values.items() if value is not False}
    return _canonical(tidied, arguments)


def changes_directory(original: str, sent: str) -> bool:
    """Whether a call that a client sent back enters another directory than the original, or enters
    one where the original enters none. The key does not cover this, and no client does it by
    itself."""
    command = _value(sent, freeform=False).get("command")
    change = _CHANGES_DIRECTORY.match(command) if isinstance(command, str) else None
    if change is None:
        return False
    original_command = _value(original, freeform=False).get("command")
    return not isinstance(original_command, str) or not original_command.startswith(change[0])


def turn_key(state: bytes, text: str, calls: Iterable[tuple[str, str]]) -> bytes:
    """The chain hash after a turn. `state`: the hash before it; `text`: all of its text; `calls`:
    rendered names and `key_arguments`."""
    hasher = chain(state)
    add(hasher, "assistant", squeeze(text))
    for name, arguments in calls:
        add(hasher, name, arguments)
    return hasher.digest()


def chain(state: bytes) -> "hashlib.blake2b":
    """A hash that continues from `state`."""
    return hashlib.blake2b(state, digest_size=DIGEST_BYTES, person=b"turnwire-chain")


def add(hasher: "hashlib.blake2b", kind: str, *texts: str) -> None:
    """Adds a record. Different lists of records have different hashes."""
    for text in (kind, *texts):
        raw = text.encode("utf-8", "surrogatepass")
        hasher.update(len(raw).to_bytes(8, "little"))
        hasher.update(raw)
    hasher.update(b"\xff" * 8)


def _value(arguments: str, *, freeform: bool) -> dict[str, Any]:
    return read_arguments(arguments, freeform=freeform, decode=_decode)


def _number(digits: str) -> float | None:
    value = float(digits)
    return value + 0.0 if math.isfinite(value) else None  # -0.0 + 0.0 is 0.0


def _null(constant: str) -> None:
    """NaN and the infinities in JavaScript's JSON."""


# Made once: `json.loads` and `json.dumps` with options take 7 and 3 us more for each call.
_decode = json.JSONDecoder(parse_int=_number, parse_float=_number, parse_constant=_null).decode
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _tidied(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if name == "command":
        value = _CHANGES_DIRECTORY.sub("", value, count=1)
    return "\n".join([line.rstrip() for line in value.split("\n")])


def _canonical(value: dict[str, Any], arguments: str) -> str:
    try:
        return _encode(value)
    except RecursionError:
        return arguments
