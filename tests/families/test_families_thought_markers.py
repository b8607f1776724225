"""Reasoning of every family, by what it writes itself: left open, opened twice, after a text, or
only mentioned."""

from itertools import product

from services.families import Family
from services.families.grammar.markup import Markup
from tests.kit.every import for_each
from tests.kit.families import (
    CALLING,
    PING,
    PLAIN,
    RUN,
    TAGGED,
    THINKING,
    joined,
    plain,
    read,
    text,
    thought,
    written,
)

TAGGED_THOUGHTS = [family for family in THINKING if family in TAGGED]


def tags(family: Family) -> tuple[str, str]:
    assert family.think is not None
    return family.think


@for_each([family for family in THINKING if not family.style.joint])
def test_reasoning_is_read_with_and_without_its_opener(family: Family) -> None:
    opener, closer = tags(family)
    rest = written(family, thought("Think."), text("Answer.")).partition(opener)[2]
    answer = [thought("Think."), text("Answer.")]
    assert read(family, opener + rest) == answer
    for raw in (rest, opener + rest):
        assert read(family, raw, in_reasoning=True) == answer, raw
    assert read(family, closer + "\n\nAnswer.", in_reasoning=True) == answer[1:]
    assert read(family, opener + "\nNever closed") == [thought("Never closed")]


@for_each([family for family in THINKING if family in CALLING])
def test_a_call_ends_reasoning_that_was_left_open(family: Family) -> None:
    """In families with headers, the next header or the marker of the calls does."""
    opener, _, _ = family.style.reasoning.partition("{text}")
    joint = family.style.joint
    call, ping = family.style.write_call(*RUN), family.style.write_call(*PING)
    for between in ("", "\n", "\n\n"):
        raw = f"{opener}Plan.{between}{joint}{call}"
        assert read(family, raw) == [thought("Plan."), RUN], raw
        again = f"{raw}{joint}{opener}More.{joint}{ping}"
        assert read(family, again) == [thought("Plan."), RUN, thought("More."), PING], again
    if family in PLAIN:
        opener, closer = tags(family)
        raw = f"{opener}\nPlan.\n{call}"
        assert read(family, raw) == [thought("Plan."), RUN]
        again = f"{raw}\n{closer}\n\nDone."
        assert read(family, again) == [thought("Plan."), RUN, text("Done.")]


@for_each([family for family in TAGGED if family in THINKING])
def test_skipped_reasoning_has_no_block(family: Family) -> None:
    """The prompt opens reasoning and the model closes it at once, opens it again, or writes its
    answer's frame."""
    assert isinstance(family.grammar, Markup)
    opener, closer = tags(family)
    answer = family.style.write_text("Done.")
    for start in (closer, f"\n{closer}", f"{opener}{closer}", f"{opener}\n\n{closer}\n\n"):
        assert read(family, start + answer, in_reasoning=True) == [text("Done.")], start
    if family.grammar.framed:
        for front, back in family.grammar.frames:
            framed = f"{plain(front)}Done.{plain(back)}"
            assert read(family, framed, in_reasoning=True) == [text("Done.")], framed
            blocks = [thought("Hm."), text("Done.")]
            assert read(family, f"Hm.{framed}", in_reasoning=True) == blocks


# -- a thought after a text: its tags are never text, unless the text mentions them


@for_each(TAGGED_THOUGHTS)
def test_thought_after_a_text_is_reasoning(family: Family) -> None:
    opener, closer = tags(family)
    some = [*product(("", "\n"), repeat=3), ("\n\n", "", "\n\n"), (" ", "\n", " ")]
    for before, inside, after in some:
        raw = f"One.{before}{opener}{inside}Hm.{inside}{closer}{after}Two."
        assert read(family, raw) == [text("One."), thought("Hm."), text("Two.")], raw
        again = f"{raw}{before}{opener}{inside}So.{inside}{closer}{after}Three."
        blocks = [text("One."), thought("Hm."), text("Two."), thought("So."), text("Three.")]
        assert read(family, again) == blocks, again
        found = read(family, f"{opener}{inside}Ah.{closer}{raw}")
        assert found[:2] == [thought("Ah."), text("One.")], raw
        if family in CALLING:
            call = family.style.write_call(*RUN)
            found = read(family, f"One.{before}{opener}{inside}Hm.\n{call}")
            assert found == [text("One."), thought("Hm."), RUN]
            assert read(family, f"{raw}\n{call}\n")[-1] == RUN, raw


@for_each(TAGGED_THOUGHTS)
def test_nested_and_repeated_tags_are_dropped(family: Family) -> None:
    opener, closer = tags(family)
    for gap in ("", "\n"):
        doubled = f"One.\n{opener}{gap}{opener}{gap}Hm.{gap}{closer}{gap}{closer}{gap}Two."
        assert joined(read(family, doubled)) == [text("One."), thought("Hm."), text("Two.")]
        nested = f"{opener}{gap}Hm.{gap}{opener}{gap}So.{gap}{closer}{gap}Ah.{gap}{closer}{gap}Two."
        assert joined(read(family, nested)) == [thought("Hm.So."), text("Ah.Two.")]


@for_each(TAGGED_THOUGHTS)
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
