"""Every view of the inspector's page in a real browser, over the recorded hour of a team."""

from pathlib import Path

import pytest

from schemas.conversation import Text
from tests.kit.conversations import user
from tests.tools.inspector import team
from tests.tools.inspector.browser import Browser, needs_chromium, running, serving
from tests.tools.inspector.by_hand import Bus, answer, asked
from tests.tools.inspector.page.recorded_page import QUESTION, TITLE, Page, played
from turnwire_tools.inspector.bus_follower import TurnSource
from turnwire_tools.inspector.fold import Fold

pytestmark = [pytest.mark.slow, needs_chromium]


def test_overview_sums_up_the_hour_and_its_links_search(page: Page) -> None:
    browser = page.open()
    browser.shows(".tiles", "turns a minute")
    assert browser.script("document.querySelectorAll('.charts svg').length") == 3
    assert "instructions changed" in browser.text("#again")
    assert "system text 1 changed (a date or time)" in browser.text("#again")
    assert len(browser.texts("#slowest tbody tr")) == 10
    assert {"alice", "bob", "nightly"} <= set(browser.texts("#by-key td:first-child a"))
    assert "Bash" in browser.texts("#tools td:first-child a")
    browser.keep("overview")

    browser.click("#by-key a[href*=alice]")
    browser.until(lambda: any(QUESTION in text or TITLE in text for text in browser.texts(".row")))
    assert not any("Ticket" in text for text in browser.texts(".row"))
    assert browser.script("document.querySelector('#search').value") == "key:alice"
    browser.press("\ue00c")  # Escape
    browser.until(lambda: any("Ticket" in text for text in browser.texts(".row")))

    browser.click(".page-head .segments button:first-child")  # 15 minutes
    browser.until(lambda: "minutes=15" in browser.place)
    browser.until(lambda: "bob" not in browser.texts("#by-key td:first-child a"))


def test_list_has_the_tree_of_agents_by_question_or_title(page: Page) -> None:
    browser = page.open()
    browser.until(lambda: TITLE in browser.texts(".row .title"))
    titles = browser.texts(".row .title")
    assert titles[titles.index(TITLE) + 1].startswith("Search the git history")
    assert browser.texts(".row.child .note")[0].startswith("helper · alice")
    assert titles.count(TITLE) == 1  # the request for the title has no row
    browser.press("t")
    browser.until(lambda: any("turn 4" in text for text in browser.texts(".row .note")))
    assert "list=turns" in browser.place
    assert browser.script("document.querySelectorAll('.row').length") < 40


def test_an_address_restores_the_view(page: Page) -> None:
    third = page.fold.sessions[page.turn(QUESTION)][2]
    browser = page.open(f"#/turn/{third}?q=math.ceil&list=turns")
    browser.until(lambda: len(browser.texts(".row mark")) == 2)
    assert set(browser.texts(".row mark")) == {"math.ceil"}
    browser.until(
        lambda: browser.script("document.querySelector('#detail').dataset.shown") == third
    )
    assert browser.script("document.querySelector('#search').value") == "math.ceil"
    browser.keep("search")
    browser.press("[")
    second = page.fold.sessions[page.turn(QUESTION)][1]
    browser.until(lambda: browser.place == f"#/turn/{second}?q=math.ceil&list=turns")

    # So does a place that was scrolled to.
    browser.until(lambda: browser.texts(f"#turn-{second}.target"))
    browser.script("document.querySelector('#detail').scrollTo(0, 0)")
    browser.until(lambda: browser.place.startswith(f"#/session/{page.turn(QUESTION)}"))


def test_search_opens_the_first_hit(page: Page) -> None:
    browser = page.open()
    browser.press("/")
    browser.press("apply_patch line 14\ue007")
    browser.until(lambda: browser.place.startswith("#/turn/"))
    found = "error: patch does not apply at line 14"
    browser.until(lambda: found in browser.texts(".part.result pre"))
    assert any("error" in text for text in browser.texts(".part.result .label"))


def test_a_search_counts_what_it_found(page: Page) -> None:
    browser = page.open("#/?q=tool:Bash")
    browser.shows("#counts", "turns found")
    rows = browser.script("document.querySelectorAll('.row.found .note mark').length")
    assert rows > 1
    assert browser.texts(".row.found .note mark")[0] == "Bash"
    browser.press("\ue00c")  # Escape
    browser.shows("#counts", " sessions, ")


@pytest.mark.parametrize("dark", [False, True])
def test_a_narrow_screen_shows_the_list_or_what_is_open(page: Page, dark: bool) -> None:
    page.browser.size(420, 860, dark=dark)
    wide = "document.documentElement.scrollWidth"
    browser = page.open()
    browser.shows(".tiles", "from the cache")
    assert (browser.script(wide), browser.texts(".row")) == (420, [])
    assert browser.texts("#status b") == ["recording"]
    browser.click("#pages a[data-page=list]")
    browser.until(lambda: TITLE in browser.texts(".row .title"))
    assert browser.texts(".tiles") == []
    browser.script(
        "[...document.querySelectorAll('.row')].find((row) => "
        "row.textContent.includes(arguments[0])).click()",
        TITLE,
    )
    browser.until(lambda: len(browser.texts(".turn .bar")) > 1)
    assert browser.script(wide) == 420
    assert browser.texts("#help") == ["?"]
    browser.click(".turn button.details")
    browser.until(lambda: browser.texts(".lane"))
    cut = "filter((one) => one.scrollWidth > one.clientWidth).length"
    assert browser.script(f"[...document.querySelectorAll('.lane span')].{cut}") == 0
    assert browser.script("getComputedStyle(document.querySelector('th')).overflowWrap") == "normal"
    browser.click(".turn button.details")
    if dark:
        browser.keep("narrow-dark")
    background = browser.script("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(18, 22, 23)") is dark


def test_a_narrow_screen_shows_the_hits_of_a_search_address(page: Page) -> None:
    page.browser.size(420, 860)
    browser = page.open("#/?q=tool:Bash")
    browser.until(lambda: "Bash" in browser.texts(".row.found .note mark"))
    assert browser.texts(".tiles") == []
    browser.click("#pages a[data-page=overview]")
    browser.until(lambda: browser.texts(".tiles"))
    assert browser.texts(".row") == []


def test_status_shows_since_when_the_bus_is_lost(browser: Browser, fold: Fold) -> None:
    source = TurnSource("nats://h:1", lost_at=1764414000.0)
    with serving(fold, source) as address:
        for width in (1280, 420):
            browser.size(width, 860)
            browser.open(address)
            browser.shows("#status", "bus lost since ")
            assert browser.texts("#status[data-state=lost] b")[0].count(":") == 2
            assert browser.script("document.documentElement.scrollWidth") == width
        source.lost_at = None
        assert browser.shows("#status", "live") == "live · nats://h:1"
    assert browser.shows("#status", "inspector lost since ").count(":") == 2
    browser.driver.get("about:blank")
    browser.driver.get_log("browser")  # the connection that was refused


def test_page_begins_again_with_another_inspector_on_its_port(browser: Browser) -> None:
    Bus(first := Fold()).turn(asked(user("Before")), range(9), [1], Text("x"))
    Bus(second := Fold()).turn(asked(user("After")), range(9), [1], Text("x"))
    browser.size(1280, 900)
    with serving(first) as address:
        browser.open(address)
        browser.until(lambda: "Before" in browser.texts(".row .title"))
    with serving(second, port=int(address.rpartition(":")[2].strip("/"))):
        browser.until(lambda: browser.texts(".row .title") == ["After"])
        browser.driver.get("about:blank")
    browser.driver.get_log("browser")  # the connection that was refused


def test_dark_pages(page: Page) -> None:
    page.browser.size(1280, 900, dark=True)
    browser = page.open(f"#/session/{page.turn(QUESTION)}")
    browser.until(lambda: len(browser.texts(".turn .bar")) == 6)
    browser.keep("session-dark")
    browser.press("d")
    background = browser.script("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(247, 247, 245)"


def test_without_texts_the_page_of_a_file_has_no_words(browser: Browser, tmp_path: Path) -> None:
    fold = played(Fold(texts=False))
    file = tmp_path / "team.jsonl"
    file.write_bytes(team.play())
    command = ("inspect", str(file), "--no-texts", "--port", "0")
    with running(tmp_path, "inspect", *command, ready="http://127.0.0.1:") as log:
        page = Page(fold, log.partition("turnwire inspect: ")[2].strip(), browser)
        agent = next(turn for turn in fold.turns.values() if turn.key == "alice" and turn.calls)
        page.open(f"#/session/{agent.id}")
        browser.until(lambda: len(browser.texts(".turn .bar")) == 6)
        assert "texts are hidden" in browser.text("#status")
        assert "characters, not shown" in browser.text(".part.user .content")
        words = browser.text("body")
        for secret in ("flaky", "login", "rg -n", "Claude Code", "2026-11-23"):
            assert secret not in words, secret
        assert browser.errors() == []


def test_ten_thousand_turns_have_elements_only_in_view(browser: Browser) -> None:
    """Sessions of a turn, and one of 300."""
    fold = Fold()
    bus = Bus(fold)
    for number in range(9700):
        bus.turn(asked(user(f"Question {number}"), session=f"s{number}"), range(40), [1], Text("x"))
    history = [user("Begin")]
    for number in range(300):
        turn = bus.turn(asked(*history, session="long"), range(200), [1], Text(f"Answer {number}"))
        history += [answer(Text(f"Answer {number}")), user(f"Step {number}")]
    with serving(fold) as address:
        page = Page(fold, address, browser)
        page.open()
        assert browser.script("document.querySelectorAll('.row').length") < 60
        browser.script("document.querySelector('#list').scrollTo(0, 58 * 9000)")
        browser.until(lambda: "Question 701" in browser.texts(".row .title"))
        page.open(f"#/turn/{turn.id}")
        browser.shows(f"#turn-{turn.id}", "Answer 299")
        for at in range(0, 100, 4):
            browser.script("document.querySelector('#detail').scrollTo(0, arguments[0])", at * 2000)
            browser.until(lambda: browser.texts(".turn .bar"))
        filled = "[...document.querySelectorAll('.turn')].filter((one) => one.children.length)"
        assert browser.script(f"{filled}.length") < 200
