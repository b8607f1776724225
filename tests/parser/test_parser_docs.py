from families_page import PAGE, page

from services.parser import families


def test_the_page_of_families_is_up_to_date() -> None:
    """If not: `python tests/parser/families_page.py`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_it_names_every_family() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in families())
