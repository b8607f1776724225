import runpy
from pathlib import Path
from typing import Any

import pytest

WORDS: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "words.py"))

MODULE = '''"""Reads turns.

A turn is a message. A reader whose turn has
ended is no caller of `behind`.
"""

DATA = "whose is behind"


def other() -> None:  # so many
    """See `reader`."""
'''


def found(path: Path, text: str) -> list[tuple[int, str, str]]:
    path.write_text(text, encoding="utf-8")
    return sorted(WORDS["findings"](path))


def test_places_in_docstrings_and_comments_are_found_and_data_is_not_read(tmp_path: Path) -> None:
    sentence = "A reader whose turn has ended is no caller of `behind`."
    assert [(line, text) for line, text, _ in found(tmp_path / "module.py", MODULE)] == [
        (3, sentence),
        (4, sentence),
        (10, "so many"),
        (11, "See `reader`."),
    ]


def test_places_in_pages_are_found_and_code_is_not_read(tmp_path: Path) -> None:
    page = "# Page\n\nNothing.\n\n```sh\nwhose behind\n```\n\nIt is sent\nbehind it. The rest.\n"
    assert found(tmp_path / "page.md", page) == [(10, "It is sent behind it.", "after, following")]


@pytest.mark.parametrize(
    "start", ["Of the turn.", "Their names.", "Those of a turn.", "By index.", "The same, later."]
)
def test_docstring_begins_with_a_noun_or_a_verb(start: str, tmp_path: Path) -> None:
    assert len(found(tmp_path / "module.py", f'"""{start}"""\n')) == 1
    assert found(tmp_path / "module.py", f'"""Turns. {start}"""\n') == []
    assert found(tmp_path / "page.md", start) == []


@pytest.mark.parametrize(
    "text",
    [
        "There is no queue.",
        "The turn is no longer open, and is no faster.",
        "It runs behind a proxy.",
        "It runs behind the HTTPS load balancer.",
        "The index is 20 ms behind.",
        "A file that an earlier run left behind is removed while a client is behind; the rest waits.",
        "A stream that was given up, after the sender has given the receiver up.",
        "By default nothing is sent.",
    ],
)
def test_legitimate_uses_pass(text: str, tmp_path: Path) -> None:
    assert found(tmp_path / "module.py", f'"""{text}"""\n') == []


def test_a_place_ends_the_check_with_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main = WORDS["main"]
    monkeypatch.setitem(
        main.__globals__, "findings", lambda _: [(1, "A turn whose text is known.", "with")]
    )
    assert main(["README.md"]) == 1
    assert capsys.readouterr().out == "README.md:1: A turn whose text is known.\n    write: with\n"
    assert main(["there is no such path"]) == 0
