"""Names of sessions and turns."""

import pytest

from turnwire_tools.inspector.conversation import Item
from turnwire_tools.inspector.labels import WORDS, question, results_label, title

ENVIRONMENT = "<environment_context>\n<cwd>/src</cwd>\n</environment_context>"
REMINDER = "<system-reminder>\nRules\n</system-reminder>"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["Fix the\n  login test"], "Fix the login test"),
        ([REMINDER, "Fix it", REMINDER], "Fix it"),
        ([f"{REMINDER}\n{ENVIRONMENT} Fix it"], "Fix it"),
        (["# AGENTS.md instructions for /src\n\n<INSTRUCTIONS>x</INSTRUCTIONS>", "Fix"], "Fix"),
        (["<b>Bold</b> is not an addition <br>"], "is not an addition <br>"),
        ([REMINDER], ""),
        ([], ""),
    ],
)
def test_a_question_begins_after_what_the_client_adds(texts: list[str], expected: str) -> None:
    assert question([Item("user", text) for text in texts]) == expected


def test_a_question_without_text_is_named_by_its_images() -> None:
    picture = Item("media", facts="image/png, 640 × 480, 48.2 kB")
    seen = Item("media", name="result.png", call_id="toolu_1")
    assert question([picture, seen]) == picture.facts
    assert question([picture, Item("media", name="b.pdf")]) == f"{picture.facts}, b.pdf"
    assert question([Item("user", "What is this?"), picture]) == "What is this?"
    assert question([seen]) == ""


def test_a_prompt_of_completions_is_a_question() -> None:
    assert question([Item("prompt", "Once upon\na time")]) == "Once upon a time"
    assert question([Item("prompt", facts="512 token ids")]) == "512 token ids"


def test_a_long_question_is_cut() -> None:
    words = question([Item("user", "word " * 1000)])
    assert len(words) <= WORDS
    assert words.endswith("word…")


def test_a_turn_without_a_question_is_named_by_its_results() -> None:
    results = [Item("result", name=name) for name in ("Bash", "Read", "Bash", "")]
    assert results_label(results) == "results of Bash, Read"
    assert results_label([]) == ""


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"title": "Fix the login test"}', "Fix the login test"),
        ("Fix the login test\n", "Fix the login test"),
        ('{"title": 7}', ""),
        ('{"isNewTopic": true}', ""),
        ("{broken", ""),
        ("Two\nlines", ""),
        ("long " * 100, ""),
    ],
)
def test_a_title_is_one_short_line(answer: str, expected: str) -> None:
    assert title(answer) == expected
