"""Computes the key under which a turn is found again when its client sends it back.

No two clients send a turn back alike: blank text is dropped, reasoning is dropped, sealed or
joined, text and calls are sorted into two fields, arguments pass through the client's own JSON,
Claude Code's tools tidy theirs, and names are repaired. The key covers what survives: the text
without white space, and the calls by value. It only has to find the turn; comparing the turn
decides whether it is the same."""

import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any

from services.ledger.turns.tidied_calls import tidied_arguments
from services.templates.tools import read_arguments
from services.tokenization.data_marks import has_surrogates, replace_surrogates

DIGEST_BYTES = 16
_RECORD_END = b"\xff" * 8


def squeeze(text: str) -> str:
    """The text without any white space."""
    return "".join(text.split())


def canonical_arguments(arguments: str, *, freeform: bool = False) -> str:
    """A call's arguments as text that is the same for every spelling of the same JSON value.

    Numbers are doubles and keys are sorted, since both go through JavaScript's JSON in most
    clients: 1.0 comes back as 1, 2**53 + 1 as 2**53, 1e400 as null, and keys that look like
    integers come first. Half of a surrogate pair, which no UTF-8 can hold, is U+FFFD. `freeform`:
    the text is a freeform tool's input itself, unless it is an object that holds it. Never raises:
    text that is not a JSON object is kept unchanged.
    """
    return _canonical(read_arguments(arguments, freeform=freeform, decode=_decode), arguments)


def key_arguments(name: str, arguments: str, *, freeform: bool = False) -> str:
    """A call's arguments in its turn's key: canonical, and without what clients change when they
    send a call back (`tidied_arguments`). Members of objects that are null are left out, as
    pydantic's `exclude_none` does. `name`: as the model sees it."""
    values = read_arguments(arguments, freeform=freeform, decode=_decode_without_nulls)
    return _canonical(tidied_arguments(name, values), arguments)


def turn_key(state: bytes, text: str, calls: Iterable[tuple[str, str]]) -> bytes:
    """The chain hash after a turn. `state`: the hash before it; `text`: all of its text; `calls`:
    rendered names and `key_arguments`. Equal calls count once, because clients run and send back
    one of them. Names are not part of the hash, because clients repair them."""
    hasher = new_hasher(state)
    add_record(hasher, "assistant", squeeze(text))
    for _, arguments in dict.fromkeys((name.casefold(), arguments) for name, arguments in calls):
        add_record(hasher, "call", arguments)
    return hasher.digest()


def new_hasher(state: bytes) -> "hashlib.blake2b":
    """A hash that continues from `state`."""
    return hashlib.blake2b(state, digest_size=DIGEST_BYTES, person=b"turnwire-chain")


def add_record(hasher: "hashlib.blake2b", kind: str, *texts: str) -> None:
    """Adds a record. Different lists of records have different hashes."""
    pieces: list[bytes] = []
    for text in (kind, *texts):
        raw = text.encode("utf-8", "surrogatepass")
        pieces += (len(raw).to_bytes(8, "little"), raw)
    hasher.update(b"".join(pieces) + _RECORD_END)


def _number(digits: str) -> float | None:
    value = float(digits)
    return value + 0.0 if math.isfinite(value) else None  # -0.0 + 0.0 is 0.0


def _null(constant: str) -> None:
    """NaN and the infinities in JavaScript's JSON."""


def _without_nulls(members: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in dict(members).items() if value is not None}


# Made once: `json.loads` and `json.dumps` with options take 7 and 3 us more for each call.
_decode = json.JSONDecoder(parse_int=_number, parse_float=_number, parse_constant=_null).decode
_decode_without_nulls = json.JSONDecoder(
    parse_int=_number,
    parse_float=_number,
    parse_constant=_null,
    object_pairs_hook=_without_nulls,
).decode
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def _canonical(value: dict[str, Any], arguments: str) -> str:
    try:
        text = _encode(value)
        if not has_surrogates(text):
            return text
        # Decoded again, because the order of keys may be another.
        return _encode(_decode(replace_surrogates(text)))
    except RecursionError:
        return arguments
