"""The key under which a turn is found again when its client sends it back.

No two clients send a turn back alike (clients.md §3.2, §4.6, §5): blank text is dropped, reasoning is dropped, sealed
or joined, text and calls are sorted into two fields, arguments pass through the client's own JSON, and Claude Code's
through its tools, which tidy them. What survives all of it is hashed here: the text without white space, and the calls
by name and value. It only has to find a turn; whether it is the same one is seen when it is compared.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable
from typing import Any

DIGEST_BYTES = 16
_UNPARSED = "__unparsed"
_INTO_DIRECTORY = re.compile(r"cd /\S+ && ")


def squeeze(text: str) -> str:
    """The text without any white space."""
    return "".join(text.split())


def canonical_arguments(arguments: str, *, freeform: bool = False) -> str:
    """A call's arguments as text that is the same for every spelling of the same JSON value.

    Numbers are doubles and keys are sorted, since both go through JavaScript's JSON in most clients: 1.0 comes back as
    1, 2**53 + 1 as 2**53, 1e400 as null, and keys that look like integers come first. `freeform`: the text is a
    freeform tool's input itself, unless it is an object that holds it. Total: what is no JSON object is kept as it is.
    """
    return _spelled(_value(arguments, freeform), arguments)


def key_arguments(arguments: str, *, freeform: bool = False) -> str:
    """A call's arguments as they go into its turn's key: canonical, and without what Claude Code adds or takes off when
    it sends a call back (seen with 2.1.328, docs/clients.md). It takes `cd` into the working directory off the front of
    a command and white space off the ends of lines that it writes, and fills in flags that are off.
    """
    value = _value(arguments, freeform)
    settled = {name: _settled(name, inner) for name, inner in value.items() if inner is not False}
    return _spelled(settled, arguments)


def goes_elsewhere(own: str, sent: str) -> bool:
    """Whether a call that a client sent back goes into another directory than the turn's own, or into one where that
    goes into none: the key does not tell, and no client does so by itself."""
    mine, theirs = _value(own, False).get("command"), _value(sent, False).get("command")
    into = _INTO_DIRECTORY.match(theirs) if isinstance(theirs, str) else None
    return into is not None and not (isinstance(mine, str) and mine.startswith(into[0]))


def _value(arguments: str, freeform: bool) -> dict[str, Any]:
    value: Any = {}
    if arguments.strip():
        try:
            value = json.loads(arguments, parse_int=_number, parse_float=_number, parse_constant=_no_number)
        except (ValueError, RecursionError):
            value = None
    if freeform and not (isinstance(value, dict) and value.keys() == {"input"}):
        value = {"input": arguments}
    return value if isinstance(value, dict) else {_UNPARSED: arguments}


def _settled(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if name == "command" and (found := _INTO_DIRECTORY.match(value)):
        value = value[found.end() :]
    return "\n".join([line.rstrip() for line in value.split("\n")])


def _spelled(value: dict[str, Any], arguments: str) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        return arguments


def turn_key(state: bytes, text: str, calls: Iterable[tuple[str, str]]) -> bytes:
    """The chain hash behind a turn: `state` is that before it, `text` all that was said in it, `calls` are told names
    and `key_arguments`."""
    hasher = chain(state)
    add(hasher, "assistant", squeeze(text))
    for name, arguments in calls:
        add(hasher, name, arguments)
    return hasher.digest()


def chain(state: bytes) -> "hashlib.blake2b":
    """A hash that goes on from `state`."""
    return hashlib.blake2b(state, digest_size=DIGEST_BYTES, person=b"turnwire-chain")


def add(hasher: "hashlib.blake2b", kind: str, *texts: str) -> None:
    """Adds a record; no two lists of records hash alike."""
    for text in (kind, *texts):
        raw = text.encode("utf-8", "surrogatepass")
        hasher.update(len(raw).to_bytes(8, "little"))
        hasher.update(raw)
    hasher.update(b"\xff" * 8)


def _number(digits: str) -> float | None:
    value = float(digits)
    return value + 0.0 if math.isfinite(value) else None  # -0.0 + 0.0 is 0.0


def _no_number(name: str) -> None:
    """NaN and the infinities, which are no JSON, become null there."""
