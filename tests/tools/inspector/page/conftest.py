"""A browser, and the page of the recorded hour in it. Selenium is imported only for the tests."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from turnwire_tools.inspector.fold import Fold

if TYPE_CHECKING:
    from tests.tools.inspector.browser import Browser
    from tests.tools.inspector.page.recorded_page import Page


@pytest.fixture(scope="package")
def browser() -> "Iterator[Browser]":
    from tests.tools.inspector.browser import Browser

    opened = Browser()
    yield opened
    opened.driver.quit()


@pytest.fixture(scope="package")
def recorded(browser: "Browser") -> "Iterator[Page]":
    from tests.tools.inspector.browser import serving
    from tests.tools.inspector.page.recorded_page import Page, played

    fold = played(Fold())
    with serving(fold) as address:
        yield Page(fold, address, browser)


@pytest.fixture
def page(recorded: "Page") -> "Iterator[Page]":
    """The page, which must not leave errors."""
    recorded.browser.errors()  # forgets those of other pages, with servers that have ended
    recorded.browser.size(1280, 900)
    yield recorded
    assert recorded.browser.errors() == []
