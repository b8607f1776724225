"""The parser core on generated turns: the blocks equal the generated ones, in every family and
split."""

import json
from collections.abc import Iterator
from random import Random

from fuzz.generated_turns import Segment, generated_turn
from fuzz.properties import check
from tests.kit.parser_cases import Block


def one(data: bytes) -> None:
    """Raises AssertionError where a property does not hold or a block differs from the generated
    one."""
    case, segments = generated_turn(data)
    found = [_segment(block) for block in check(case)]
    assert found == segments, f"blocks are what was written: {found}, {segments} of {case.raw!r}"


def mutate(data: bytes, chance: Random) -> bytes:
    """Other decisions, near `data`."""
    choices = bytearray(data or b"\0")
    for _ in range(chance.choice((1, 2, 4))):
        at = chance.randrange(len(choices) + 1)
        piece = chance.randbytes(chance.choice((0, 1, 1, 4)))
        choices[at : at + chance.choice((0, 1, 1, 4))] = piece
    return bytes(choices)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Some for each family."""
    for number in range(256):
        chance = Random(number)
        yield f"{number:03}", bytes([number]) + chance.randbytes(chance.randrange(10, 120))


def _segment(block: Block) -> Segment:
    if block["type"] != "tool_use":
        return block["type"], block["text"].strip(), {}
    arguments = json.loads(block["text"]) if block["complete"] else {"incomplete": block["text"]}
    return block["type"], block["name"], arguments
