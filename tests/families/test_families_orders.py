"""Every order of blocks that a family's grammar allows, with the truth that it was written from, in
every chunking."""

from collections.abc import Iterator
from itertools import product

from services.families import Family
from tests.kit.every import for_each
from tests.kit.families import (
    CALLING,
    PING,
    RUN,
    TAGGED,
    THINKING,
    UNMARKED,
    Said,
    empty_sections,
    orphans,
    read,
    text,
    thought,
    written,
)

ITEMS = "TXCUEO"
"""A thought; a text; a call; a thought that is left open, and a call; a section without calls; a
closer of nothing."""
CALLS = (RUN, PING, RUN, RUN)
LONGER = ("CCCC", "XCXCX", "TCTC", "TXCTX", "TCCTX")


def orders(family: Family, length: int) -> Iterator[str]:
    """Sequences of items: reasoning opens at a block boundary only, and texts that follow each
    other are one."""
    sections = family in TAGGED and family.name not in UNMARKED and empty_sections(family)
    thinks = family in THINKING and family.style.reasoning
    closes = family in TAGGED and orphans(family)
    absent = "" if thinks else "TU"
    absent += "" if sections else "E"
    absent += "" if closes else "O"
    items = [item for item in ITEMS if item not in absent]
    for order in map("".join, product(items, repeat=length)):
        pairs = [a + b for a, b in zip(" " + order, order, strict=False)]
        late = any(pair[0] in "XTO" and pair[1] in "TU" for pair in pairs)
        joined = any(pair in ("XX", "EE", "EO", "OE", "OO") for pair in pairs)
        stray = any(pair == "XE" or (pair[1] == "O" and pair[0] not in " C") for pair in pairs)
        if not (late or joined or stray):
            yield order


def write(family: Family, order: str, joint: str = "\n", turn: int = 0) -> tuple[str, list[Said]]:
    """The raw output, and the blocks that it holds. `joint` is for a family without its own; empty
    sections and closers differ by `turn`."""
    raw: list[str] = []
    blocks: list[Said] = []
    opener = family.style.reasoning.partition("{text}")[0]
    for number, item in enumerate(order):
        call = CALLS[number % 4]
        if item == "T":
            raw.append(family.style.write_reasoning(f"Hm {number}."))
            blocks.append(thought(f"Hm {number}."))
        elif item == "X":
            raw.append(family.style.write_text(f"Say {number}."))
            blocks.append(text(f"Say {number}."))
        elif item == "U":
            joint_now = family.style.joint or "\n"
            raw.append(f"{opener}Open {number}.{joint_now}{family.style.write_call(*call)}")
            blocks += [thought(f"Open {number}."), call]
        elif item == "C":
            raw.append(family.style.write_call(*call))
            blocks.append(call)
        else:
            signs = empty_sections(family) if item == "E" else orphans(family)
            raw.append(signs[turn % len(signs)])
    return (family.style.joint or joint).join(raw), blocks


@for_each(CALLING)
def test_blocks_come_back_in_the_order_in_which_they_were_written(family: Family) -> None:
    for turn, order in enumerate([*orders(family, 1), *orders(family, 2)]):
        raw, blocks = write(family, order, turn=turn)
        assert read(family, raw) == blocks, (order, raw)


@for_each(CALLING)
def test_turns_without_line_breaks_between_blocks_are_read(family: Family) -> None:
    for order in LONGER:
        if family not in THINKING:
            order = order.replace("T", "")
        raw, blocks = write(family, order, joint="")
        assert read(family, raw) == blocks, order


@for_each(CALLING)
def test_brackets_and_tags_of_other_formats_are_text(family: Family) -> None:
    said = text("Is 3 < 4? Write `</div>` before <p class=\"x\">; 1<<3 == 8, {a} [b] 'c'.")
    assert read(family, written(family, said)) == [said]
