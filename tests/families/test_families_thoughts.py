"""A thought after a text: its tags are never text, unless the text mentions them."""

from itertools import product

import pytest

from services.families import Family
from services.families.grammar.markup import Markup
from tests.families.test_families_catalog import CALLING, RUN, THINKING, ids, read, text, thought

TAGGED = [family for family in THINKING if isinstance(family.grammar, Markup)]
GAPS = ("", "\n", "\n\n", " ")


def tags(family: Family) -> tuple[str, str]:
    assert family.think is not None
    return family.think


def joined(blocks: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbours of one kind as one, without white space."""
    found: list[tuple[str, str]] = []
    for kind, value in blocks:
        value = "".join(value.split()) if isinstance(value, str) else value
        if found and found[-1][0] == kind and isinstance(value, str):
            value = found.pop()[1] + value
        found.append((kind, value))
    return found


@pytest.mark.parametrize("family", TAGGED, ids=ids)
def test_thought_after_a_text_is_reasoning(family: Family) -> None:
    opener, closer = tags(family)
    for before, inside, after in product(GAPS, ("", "\n"), GAPS):
        raw = f"One.{before}{opener}{inside}Hm.{inside}{closer}{after}Two."
        assert read(family, raw) == [text("One."), thought("Hm."), text("Two.")], raw
        again = f"{raw}{before}{opener}{inside}So.{inside}{closer}{after}Three."
        blocks = [text("One."), thought("Hm."), text("Two."), thought("So."), text("Three.")]
        assert read(family, again) == blocks, again
        assert read(family, f"{opener}{inside}Ah.{closer}{raw}")[:2] == [
            thought("Ah."),
            text("One."),
        ]
        if family in CALLING:
            call = family.style.write_call(*RUN)
            assert read(family, f"One.{before}{opener}{inside}Hm.\n{call}") == [
                text("One."),
                thought("Hm."),
                RUN,
            ]
            assert read(family, f"{raw}\n{call}\n")[-1] == RUN


@pytest.mark.parametrize("family", TAGGED, ids=ids)
def test_closer_without_opener_after_a_text_is_dropped(family: Family) -> None:
    _, closer = tags(family)
    for before, after in product(GAPS, GAPS):
        if before == after == " ":
            continue
        raw = f"One.{before}{closer}{after}Two.{before}{closer}{after}Three."
        assert joined(read(family, raw)) == [text("One.Two.Three.")], raw
        raw = f"One.{before}{closer}{closer}{after}Two."
        assert joined(read(family, raw)) == [text("One.Two.")], raw


@pytest.mark.parametrize("family", TAGGED, ids=ids)
def test_nested_and_repeated_tags_are_dropped(family: Family) -> None:
    opener, closer = tags(family)
    for gap in ("", "\n"):
        doubled = f"One.\n{opener}{gap}{opener}{gap}Hm.{gap}{closer}{gap}{closer}{gap}Two."
        assert joined(read(family, doubled)) == [text("One."), thought("Hm."), text("Two.")]
        nested = f"{opener}{gap}Hm.{gap}{opener}{gap}So.{gap}{closer}{gap}Ah.{gap}{closer}{gap}Two."
        assert joined(read(family, nested)) == [thought("Hm.So."), text("Ah.Two.")]


@pytest.mark.parametrize("family", TAGGED, ids=ids)
def test_mentioned_tag_stays_in_the_text(family: Family) -> None:
    opener, closer = tags(family)
    for raw in (
        f"Write `{opener}` and `{closer}`.",
        f'The tags "{opener}" and "{closer}" wrap it.',
        f"It opens with {opener} and ends with {closer}, always.",
        f"Use ({opener}…{closer}) here.",
        f"Like:\n~~~\n{opener}\nplan\n{closer}\n~~~\nDone.",
        f"Like:\n```xml\n{opener}plan{closer}\nok\n```",
        f"It is over. {opener} tags are special.",
    ):
        assert read(family, raw) == [text(raw)]
        assert read(family, f"{opener}Hm.{closer}{raw}") == [thought("Hm."), text(raw)]


@pytest.mark.parametrize(
    "family", [family for family in TAGGED if family.style.text != "{text}"], ids=ids
)
def test_thought_inside_of_a_framed_text_is_reasoning(family: Family) -> None:
    opener, closer = tags(family)
    raw = family.style.write_text(f"One.\n{opener}\nHm.\n{closer}\nTwo.")
    assert read(family, raw) == [text("One."), thought("Hm."), text("Two.")]
    raw = (
        family.style.write_text("One.")
        + f"\n{opener}\nHm.\n{closer}\n"
        + family.style.write_text("Two.")
    )
    assert read(family, raw) == [text("One."), thought("Hm."), text("Two.")]
