"""Every order of blocks that a family's grammar allows, with the truth that it was written from, in
every chunking."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from services.families import Family
from tests.families.test_families_broken_turns import TAGGED, UNMARKED, closers, empty_sections
from tests.families.test_families_catalog import (
    CALLING,
    PING,
    RUN,
    THINKING,
    ids,
    read,
    text,
    thought,
)

ITEMS = "TXCUEO"
"""A thought; a text; a call; a thought that is left open, and a call; a section without calls; a
closer of nothing."""


def orders(family: Family, length: int) -> Iterator[str]:
    """Sequences of items: reasoning opens at a block boundary only, and texts that follow each
    other are one."""
    sections = family in TAGGED and family.name not in UNMARKED and empty_sections(family)
    thinks = family in THINKING and family.style.reasoning
    items = [
        item
        for item in ITEMS
        if (item not in "TU" or thinks)
        and (item != "E" or sections)
        and (item != "O" or closes(family))
    ]
    for order in map("".join, product(items, repeat=length)):
        pairs = list(zip(" " + order, order, strict=False))
        late = any(now in "TU" and before in "XTO" for before, now in pairs)
        joined = any(
            now == before == "X" or (now in "EO" and before in "EO") for before, now in pairs
        )
        stray = any(
            (now == "O" and before not in " C") or (now == "E" and before == "X")
            for before, now in pairs
        )
        if not (late or joined or stray):
            yield order


def closes(family: Family) -> bool:
    return family in TAGGED and bool(closers(family))


def write(family: Family, order: str) -> tuple[str, list[tuple[str, Any]]]:
    """The raw output, and the blocks that it holds."""
    raw: list[str] = []
    blocks: list[tuple[str, Any]] = []
    opener = family.style.reasoning.partition("{text}")[0]
    for number, item in enumerate(order):
        call = (RUN, PING)[number % 2]
        if item == "T":
            raw.append(family.style.write_reasoning(f"Hm {number}."))
            blocks.append(thought(f"Hm {number}."))
        elif item == "X":
            raw.append(family.style.write_text(f"Say {number}."))
            blocks.append(text(f"Say {number}."))
        elif item == "U":
            raw.append(
                f"{opener}Open {number}.{family.style.joint or chr(10)}{family.style.write_call(*call)}"
            )
            blocks += [thought(f"Open {number}."), call]
        elif item == "C":
            raw.append(family.style.write_call(*call))
            blocks.append(call)
        else:
            raw.append(empty_sections(family)[0] if item == "E" else closers(family)[0])
    return (family.style.joint or "\n").join(raw), blocks


@pytest.mark.parametrize("family", CALLING, ids=ids)
@pytest.mark.parametrize(
    "length",
    [1, 2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)],
)
def test_blocks_come_back_in_the_order_in_which_they_were_written(
    family: Family, length: int
) -> None:
    for order in orders(family, length):
        raw, blocks = write(family, order)
        assert read(family, raw) == blocks, order


@pytest.mark.parametrize(
    "family", [family for family in THINKING if family in CALLING and family in TAGGED], ids=ids
)
def test_blocks_stay_in_order_after_a_prompt_that_opens_reasoning(family: Family) -> None:
    opener, _, closer = family.style.reasoning.partition("{text}")
    for order in orders(family, 2):
        if "O" in order or "E" in order:
            continue
        raw, blocks = write(family, order)
        if order[0] not in "TU":
            assert read(family, f"Well.{closer}{raw}", in_reasoning=True) == [
                thought("Well."),
                *blocks,
            ], order
        if order[0] == "U":
            assert read(family, raw.removeprefix(opener), in_reasoning=True) == blocks, order
