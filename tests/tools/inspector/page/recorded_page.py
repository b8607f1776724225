"""The inspector's page over the recorded hour of a team."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.tools.inspector import team
from tests.tools.inspector.browser import Browser, serving
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.recording import read

TITLE = "Fix the flaky login test"
QUESTION = "The login test is flaky on CI"


@dataclass
class Page:
    """The page of the recorded hour."""

    fold: Fold
    address: str
    browser: Browser

    def open(self, place: str = "#/") -> Browser:
        """Opens a place, and waits for the list."""
        self.browser.open(self.address + place)
        self.browser.until(
            lambda: self.browser.script("document.body.dataset.rows") == str(len(self.fold.turns))
        )
        return self.browser

    def turn(self, words: str) -> str:
        """The newest turn that asks this."""
        turns = reversed(self.fold.turns.values())
        return next(turn.id for turn in turns if words in turn.label and turn.kind != "background")


def played(fold: Fold) -> Fold:
    for at, receiver, message in read("team.jsonl", team.play().decode()):
        fold.take(message, at, receiver)
    return fold


@contextmanager
def page_of(fold: Fold, browser: Browser) -> Iterator[Page]:
    """The page of other turns, which is left before its server ends."""
    with serving(fold) as address:
        yield Page(fold, address, browser)
        browser.driver.get("about:blank")
