"""The parser core on generated turns: the blocks equal the generated ones, in every family and
split."""

import json
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from fuzz.generated_turns import Segment, generated_turn
from fuzz.properties import Block, PropertyViolated, check


def one(data: bytes) -> None:
    """Raises `PropertyViolated` where a property does not hold or a block differs from the
    generated one."""
    case, segments = generated_turn(data)
    got, want = (
        [_parsed(block) for block in check(case)],
        [_expected(segment) for segment in segments],
    )
    if got != want:
        wrong = next(
            (pair for pair in zip(got, want, strict=False) if pair[0] != pair[1]), (got, want)
        )
        raise PropertyViolated(
            "blocks are what was written", f"{case.family}: {wrong} of {case.raw!r}"
        )


def mutate(data: bytes, chance: Random) -> bytes:
    """Other decisions, near `data`."""
    choices = bytearray(data or b"\0")
    for _ in range(chance.choice((1, 2, 4))):
        at = chance.randrange(len(choices) + 1)
        choices[at : at + chance.choice((0, 1, 1, 4))] = chance.randbytes(
            chance.choice((0, 1, 1, 4))
        )
    return bytes(choices)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Some for each family."""
    for number in range(256):
        chance = Random(number)
        yield f"{number:03}", bytes([number]) + chance.randbytes(chance.randrange(10, 120))


def show(data: bytes) -> str:
    """The raw text and its blocks."""
    case, segments = generated_turn(data)
    return f"{case.family}: {case.raw!r}\n{segments}"


def _parsed(block: Block) -> tuple[str, str, Mapping[str, Any] | str]:
    if block.kind != "tool_use":
        return block.kind, block.text.strip(), {}
    return (
        block.kind,
        str(block.name),
        json.loads(block.text) if block.complete else f"incomplete: {block.text}",
    )


def _expected(segment: Segment) -> tuple[str, str, Mapping[str, Any]]:
    return segment
