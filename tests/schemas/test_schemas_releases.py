"""Processes of two releases with the same protocol number read each other's messages.

`earlier_messages.json` has an example of each Struct of a message as it was encoded on 2026-11-29,
with every field set. A change that this test refuses needs the next protocol number.
"""

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

import schemas

EXAMPLES: dict[str, Any] = json.loads(
    Path(__file__).with_name("earlier_messages.json").read_bytes()
)
NOT_READ = {
    "LedgerContext": {
        *("parent", "parent_tokens", "parent_end", "joint"),
        *("previous", "previous_key", "history"),
    }
}
"""Members that are not read any more. Without those of a `LedgerContext` a session computes one
prompt again."""


def message_types() -> dict[str, type[Struct]]:
    types: dict[str, type[Struct]] = {}
    for module in pkgutil.iter_modules(schemas.__path__, "schemas."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, type) and issubclass(value, Struct):
                types[name] = value
    return types


def missing(old: Any, new: Any, path: str = "") -> list[str]:
    """The paths of what is in `old` and not, or not equally, in `new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            place
            for key, value in old.items()
            for place in missing(value, new.get(key), f"{path}.{key}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            place
            for number, value in enumerate(old)
            for place in missing(value, new[number], f"{path}[{number}]")
        ]
    return [] if old == new else [path]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_message_of_an_older_release_is_read_whole(name: str) -> None:
    kind = message_types()[name]
    decoded = msgspec.json.decode(json.dumps(EXAMPLES[name]), type=kind)
    again = msgspec.json.decode(msgspec.json.encode(decoded))
    not_read = set().union(*NOT_READ.values())
    assert {path.rpartition(".")[2] for path in missing(EXAMPLES[name], again)} <= not_read
