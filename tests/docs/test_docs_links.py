"""Follows the links between the pages of the documentation, headings included."""

import re
from pathlib import Path

import pytest

from tests.docs.reader import PAGES, ROOT

_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def headings(page: Path) -> set[str]:
    """The names that links to headings of a page use."""
    found = _HEADING.findall(_CODE.sub("", page.read_text()))
    bare = [re.sub(r"[^\w\s-]", "", heading.lower()) for heading in found]
    return {re.sub(r"\s", "-", heading) for heading in bare}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_a_page_leads_somewhere(name: str) -> None:
    page = ROOT / name
    for target, heading in _LINK.findall(_CODE.sub("", page.read_text())):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if heading and file.suffix == ".md":
            assert heading in headings(file), f"{target}#{heading}"
