"""The fuzzer's parser targets, for a short run from fixed seeds."""

from random import Random

import pytest

from fuzz.cases import FAMILIES, decode
from fuzz.properties import PropertyViolated
from fuzz.targets import parser, stories
from tests.kit.examples import examples

_SEEDS: dict[str, list[bytes]] = {}
for _, _seed in parser.seeds():
    _SEEDS.setdefault(decode(_seed).family, []).append(_seed)


def test_every_property_holds_for_every_vector() -> None:
    for name, data in parser.seeds():
        try:
            parser.one(data)
        except PropertyViolated as violation:
            pytest.fail(f"{name}: {violation}")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_property_holds_for_mutations(family: str) -> None:
    chance = Random(family)
    pool = list(_SEEDS.get(family) or [bytes([FAMILIES.index(family)]) + b"\0\1\0\0\0text"])
    for _ in range(examples(40)):
        data = parser.mutate(chance.choice(pool), chance)
        pool.append(data)
        try:
            parser.one(data)
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error}\n{parser.show(data)}")


@pytest.mark.parametrize("number", range(len(FAMILIES)))
def test_blocks_equal_the_generated_turn(number: int) -> None:
    chance = Random(number)
    for _ in range(examples(15)):
        data = bytes([number]) + chance.randbytes(chance.randrange(10, 120))
        try:
            stories.one(data)
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error}\n{stories.show(data)}")
