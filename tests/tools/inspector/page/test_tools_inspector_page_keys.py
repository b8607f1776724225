"""The keys of the inspector's page: they scroll, and move from turn to turn."""

import pytest

from schemas.conversation import Text
from tests.kit.conversations import user
from tests.tools.inspector.browser import Browser, needs_chromium
from tests.tools.inspector.by_hand import Bus, answer, asked
from tests.tools.inspector.page.recorded_page import QUESTION, TITLE, Page, page_of
from turnwire_tools.inspector.fold import Fold

pytestmark = [pytest.mark.slow, needs_chromium]


def test_keys_scroll_the_conversation_that_was_opened(page: Page) -> None:
    browser = page.open()
    browser.script(
        "[...document.querySelectorAll('.row')].find((row) => "
        "row.textContent.includes(arguments[0])).click()",
        TITLE,
    )
    browser.until(lambda: browser.texts(".turn .bar"))
    browser.until(lambda: browser.script("document.activeElement.id") == "detail")
    browser.press("\ue010")  # End
    browser.until(lambda: browser.script("document.querySelector('#detail').scrollTop") > 500)
    place = browser.place
    browser.press("jj\ue007")  # the list is one key away
    browser.until(lambda: browser.place != place)


def test_brackets_move_by_one_turn_from_the_start_of_a_session_to_its_end(page: Page) -> None:
    turns = page.fold.sessions[page.turn(QUESTION)]
    browser = page.open(f"#/session/{turns[0]}")
    browser.until(lambda: browser.texts(".turn .bar"))
    browser.press("s")
    _press_in_turn(browser, "]", turns)
    _press_in_turn(browser, "[", turns[-2::-1])
    browser.press("[")
    browser.until(lambda: browser.place == f"#/session/{turns[0]}")
    top = "document.querySelector('#detail').scrollTop"
    browser.until(lambda: browser.script(top) == 0)

    browser.press("n")
    browser.until(lambda: browser.place == f"#/turn/{turns[-1]}")
    browser.press("s")
    browser.until(lambda: browser.script(top) == 0)

    # Keys that follow each other faster than the page scrolls count, too.
    browser.press("]]]]")
    browser.until(lambda: browser.texts(f"#turn-{turns[3]}.target"))
    assert browser.place == f"#/turn/{turns[3]}"
    assert browser.texts(".turn.target") == browser.texts(f"#turn-{turns[3]}")


def test_brackets_move_through_turns_that_fit_into_the_view(browser: Browser) -> None:
    fold = Fold()
    bus = Bus(fold)
    history = [user("Begin")]
    for number in range(3):
        bus.turn(asked(*history), range(200), [1], Text(f"Answer {number}"))
        history += [answer(Text(f"Answer {number}")), user("More")]
    turns = list(fold.turns)
    with page_of(fold, browser) as page:
        page.open(f"#/session/{turns[0]}")
        browser.until(lambda: len(browser.texts(".turn .bar")) == 3)
        _press_in_turn(browser, "]", [*turns, turns[-1]])  # the last one is shown again
        _press_in_turn(browser, "[", turns[-2::-1])


def _press_in_turn(browser: Browser, key: str, turns: list[str]) -> None:
    """Presses a key once for each of these turns, which have to come into view one by one."""
    for turn in turns:
        browser.until(lambda: not browser.texts(".turn.target"))  # the last move has settled
        browser.press(key)
        browser.until(lambda: browser.texts(".turn.target"))
        assert browser.place == f"#/turn/{turn}"


def test_key_e_opens_the_details_of_the_turn_in_view_or_the_newest(page: Page) -> None:
    browser = page.open()
    browser.press("e")
    newest = max(page.fold.turns.values(), key=lambda turn: turn.time)
    assert "Events" in browser.shows(f"#turn-{newest.id} .turn-details", "Events")
    assert browser.place == f"#/turn/{newest.id}/details"

    agent = page.turn(QUESTION)
    browser = page.open(f"#/session/{agent}")
    first = page.fold.sessions[page.fold.turns[agent].session][0]
    browser.until(lambda: len(browser.texts(".turn .bar")) == 6)
    browser.press("e")
    assert "Events" in browser.shows(f"#turn-{first} .turn-details", "Events")
    top = "document.querySelector('.turn-details').getBoundingClientRect().top"
    browser.until(lambda: 48 < browser.script(top) < 880)  # in view
    browser.press("e")
    browser.until(lambda: not browser.texts(".turn-details"))
