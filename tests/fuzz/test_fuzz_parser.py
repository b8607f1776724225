"""The fuzzer's parser targets, from fixed seeds: a short run of what `python -m fuzz` does for hours."""

from random import Random

import pytest

from fuzz.cases import FAMILIES, decode
from fuzz.laws import Broken
from fuzz.targets import parser, stories

_SEEDS: dict[str, list[bytes]] = {}
for _, _seed in parser.seeds():
    _SEEDS.setdefault(decode(_seed).family, []).append(_seed)


def test_every_vector_keeps_every_law() -> None:
    for name, data in parser.seeds():
        try:
            parser.one(data)
        except Broken as broken:
            pytest.fail(f"{name}: {broken}")


@pytest.mark.parametrize("family", FAMILIES)
def test_mutations_keep_every_law(family: str) -> None:
    chance = Random(family)
    pool = list(_SEEDS.get(family) or [bytes([FAMILIES.index(family)]) + b"\0\1\0\0\0text"])
    for _ in range(40):
        data = parser.mutate(chance.choice(pool), chance)
        pool.append(data)
        try:
            parser.one(data)
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error}\n{parser.show(data)}")


@pytest.mark.parametrize("number", range(len(FAMILIES)))
def test_blocks_are_what_was_written(number: int) -> None:
    chance = Random(number)
    for _ in range(15):
        data = bytes([number]) + chance.randbytes(chance.randrange(10, 120))
        try:
            stories.one(data)
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error}\n{stories.show(data)}")
