"""The parser core, all families: checks every property."""

from collections.abc import Iterator

from fuzz.cases import FAMILIES, decode, encode
from fuzz.mutate import mutate
from fuzz.properties import check
from tests.kit.parser_cases import vectors

__all__ = ["mutate", "one", "seeds"]


def one(data: bytes) -> None:
    """Raises AssertionError, or any exception of the parser."""
    check(decode(data))


def seeds() -> Iterator[tuple[str, bytes]]:
    """Every vector."""
    for number, vector in enumerate(vectors()):
        if vector["family"] in FAMILIES:
            yield f"{vector['family']}-{number}", encode(vector, seed=number)
