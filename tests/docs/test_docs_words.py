import runpy
from pathlib import Path
from typing import Any

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
