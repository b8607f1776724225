"""docs/families.md: the generated tables, the example of the library, and how a turn is read."""

import pytest

from schemas.conversation import ToolSpec
from schemas.events import BlockEvent, BlockStart, Delta
from services.families import open_parser
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


def test_a_turn_is_read_as_the_page_shows() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| piece |")[2].partition("\n\n")[0]
    parser = open_parser("hermes", tools=[ToolSpec("ls", schema={})])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert len(rows) == 8
    for piece, held_back, plain_stretch, events in rows:
        shown = ", ".join(map(_shown, parser.feed(piece.strip("`"))))
        assert (shown, parser.scanner.rest()) == (events, held_back.strip("`"))
        assert plain_stretch == ("no" if parser.stretch is None else "yes")


def _shown(event: BlockEvent) -> str:
    match event:
        case BlockStart():
            return " ".join(filter(None, ("start", event.kind, event.name)))
        case Delta():
            return f"`{event.text}`"
    return "stop"
