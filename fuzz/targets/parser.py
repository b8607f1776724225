"""The parser core, all families: checks every property."""

import json
from collections.abc import Iterator
from random import Random

from fuzz.cases import FAMILIES, decode, encode, to_vector
from fuzz.mutate import mutate as _mutate
from fuzz.properties import check
from fuzz.toolsets import VECTORS


def one(data: bytes) -> None:
    """Raises AssertionError, or any exception of the parser."""
    check(decode(data))


def mutate(data: bytes, chance: Random) -> bytes:
    """Another input near `data`."""
    return _mutate(data, chance)


def show(data: bytes) -> str:
    """The case, as a vector."""
    return json.dumps(to_vector(decode(data)), ensure_ascii=False)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Every vector."""
    for file in sorted(VECTORS.glob("*.jsonl")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
            vector = json.loads(line)
            if vector["family"] in FAMILIES:
                yield f"{vector['family']}-{number}", encode(vector, seed=number)
