"""The parser core, all families: checks every property."""

import json
from collections.abc import Iterator

from fuzz.cases import FAMILIES, decode, encode
from fuzz.mutate import mutate
from fuzz.properties import check
from fuzz.toolsets import VECTORS

__all__ = ["mutate", "one", "seeds"]


def one(data: bytes) -> None:
    """Raises AssertionError, or any exception of the parser."""
    check(decode(data))


def seeds() -> Iterator[tuple[str, bytes]]:
    """Every vector."""
    for file in sorted(VECTORS.glob("*.jsonl")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
            vector = json.loads(line)
            if vector["family"] in FAMILIES:
                yield f"{vector['family']}-{number}", encode(vector, seed=number)
