"""docs/families.md: the generated tables, and the example of the library."""

import pytest

from tests.families.families_page import PAGE, page


def test_the_page_of_families_is_up_to_date() -> None:
    """If not: `python tests/families/families_page.py`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_library_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    exec(compile(code, "families.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "BlockStart(block=0, kind='reasoning', name=None, call_id=None)"
    assert lines[-1].startswith("BlockStop(block=1, complete=True")
