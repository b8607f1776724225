"""docs/bus.md shows the states of a turn as `turn_state.TRANSITIONS` has them."""

from pathlib import Path

from tests.docs.turn_states import drawing

PAGE = Path(__file__).parents[2] / "docs" / "bus.md"


def test_page_shows_the_table() -> None:
    assert f"```text\n{drawing()}\n```" in PAGE.read_text(), (
        "put the output of tests.docs.turn_states into the page"
    )
