"""The difference of two prompts from their texts and their ids."""

from array import array
from typing import Any

from services.prompt_diff.change import Change
from services.prompt_diff.prompts import ComparedPrompt, Difference, difference
from tests.kit.every import for_rows

FRONT = "You are an agent. Today is {}. Session {}. Speed {}. {}\n"


def front(
    date: str = "2026-11-20", session: str = "5f811fffeceb", speed: str = "7", text: str = "Be good"
) -> str:
    return FRONT.format(date, session, speed, text)


def ids(text: str) -> "array[int]":
    """One token a character."""
    return array("I", map(ord, text))


def texts(before: str, now: str, *, head: int | None = None) -> Difference:
    head = len(before) if head is None else head
    return difference(
        ComparedPrompt(text=before, head=head, ids=ids(before)),
        ComparedPrompt(text=now, ids=ids(now)),
    )


@for_rows(
    [
        ({"date": "2026-11-21"}, "date", "2026-11-20.", "2026-11-21."),
        ({"session": "5f811fffec00"}, "id", "5f811fffeceb.", "5f811fffec00."),
        ({"speed": "8"}, "number", "7.", "8."),
        ({"text": "Be bad"}, "text", "good", "bad"),
    ]
)
def test_kind_of_varying_text_is_named(
    changed: dict[str, str], varies: Any, was: str, now: str
) -> None:
    (change,) = texts(front() + "Q", front(**changed) + "Q<assistant>A<user>Q2").changes
    assert change == Change("system", "the text before the first answer", was, now, varies)


def test_answer_is_part_of_what_a_prompt_extends() -> None:
    before, now = ComparedPrompt(ids=ids("Q<a>")), ComparedPrompt(ids=ids("Q<a>A<u>Q2"))
    assert difference(before, now, answer_ids=ids("A")) == Difference(5, 0, [])
    assert difference(before, now, answer_ids=ids("AB")) == Difference(5, 1, [])
