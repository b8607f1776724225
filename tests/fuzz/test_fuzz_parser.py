"""The fuzzer's parser targets, for a short run from fixed seeds."""

from random import Random

from fuzz.cases import FAMILIES, decode
from fuzz.targets import parser, stories
from tests.kit.every import for_each
from tests.kit.examples import examples

SEEDS = dict(parser.seeds())


@for_each(list(SEEDS), parts=6)
def test_every_property_holds_for_every_vector(name: str) -> None:
    parser.one(SEEDS[name])


@for_each(FAMILIES, parts=10)
def test_every_property_holds_for_mutations(family: str) -> None:
    chance = Random(family)
    empty = bytes([FAMILIES.index(family)]) + b"\0\1\0\0\0text"
    pool = [data for data in SEEDS.values() if decode(data).family == family] or [empty]
    for _ in range(examples(40)):
        data = parser.mutate(chance.choice(pool), chance)
        pool.append(data)
        try:
            parser.one(data)
        except Exception as error:
            error.add_note(parser.show(data))
            raise


@for_each(range(len(FAMILIES)), parts=6)
def test_blocks_equal_the_generated_turn(number: int) -> None:
    chance = Random(number)
    for _ in range(examples(15)):
        data = bytes([number]) + chance.randbytes(chance.randrange(10, 120))
        try:
            stories.one(data)
        except Exception as error:
            error.add_note(stories.show(data))
            raise
