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
PAGE = "# Page\n\nNothing.\n\n```sh\nwhose behind\n```\n\nIt is sent\nbehind it. The rest.\n"


def test_places_in_prose_are_found_and_data_and_code_are_not_read(tmp_path: Path) -> None:
    module, page = tmp_path / "module.py", tmp_path / "page.md"
    module.write_text(MODULE)
    page.write_text(PAGE)
    sentence = "A reader whose turn has ended is no caller of `behind`."
    found = [(line, text) for line, text, _ in sorted(WORDS["findings"](module))]
    assert found == [(3, sentence), (4, sentence), (10, "so many"), (11, "See `reader`.")]
    assert [*WORDS["findings"](page)] == [(10, "It is sent behind it.", "after, following")]
