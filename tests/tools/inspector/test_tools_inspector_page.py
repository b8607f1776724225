"""Every view of the inspector's page in a real browser, over the recorded hour of a team."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import Raw

from schemas.conversation import Call, Sampling, Text
from schemas.requests import GenerateRequest, TurnRequest
from schemas.token_ids import pack_ids
from tests.kit.conversations import user
from tests.tools.inspector import team
from tests.tools.inspector.browser import Browser, needs_chromium, running, serving
from tests.tools.inspector.by_hand import Bus, answer, asked
from turnwire_tools.inspector.bus_follower import TurnSource
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.recording import read

pytestmark = [pytest.mark.slow, needs_chromium]
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    opened = Browser()
    yield opened
    opened.driver.quit()


@pytest.fixture(scope="module")
def recorded(browser: Browser) -> Iterator[Page]:
    fold = played(Fold())
    with serving(fold) as address:
        yield Page(fold, address, browser)


@pytest.fixture
def page(recorded: Page) -> Iterator[Page]:
    """The page, which must not leave errors."""
    recorded.browser.size(1280, 900)
    yield recorded
    assert recorded.browser.errors() == []


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


def test_session_reads_as_a_conversation(page: Page) -> None:
    browser = page.open(f"#/session/{page.turn(QUESTION)}")
    browser.until(lambda: len(browser.texts(".turn .bar")) == 6)
    assert browser.text(".session-head h2") == TITLE
    heads = browser.texts(".part.head summary")
    assert heads[0].startswith("Instructions")
    assert "tokens" in heads[0]
    assert "5: Bash, Read, Edit, Task, WebFetch" in heads[1]
    assert browser.texts(".part.added summary")[0].startswith("Added")
    assert browser.texts(".part.reasoning")[0].startswith("Reasoning")
    shades = browser.script(
        "[...document.querySelectorAll('.part.result')].map((one) => one.className)"
    )
    assert shades
    assert all("computed" in shade or "partly" in shade for shade in shades)
    assert "pytest -q tests/test_login.py --count 200" in browser.texts(".arguments dd")
    browser.keep("session")

    browser.click(".fold + .more")
    assert "Show less" in browser.texts(".more")
    browser.click(".part.head > summary")
    browser.until(lambda: any("Never skip" in text for text in browser.texts(".inside pre")))


def test_helpers_and_held_turns_are_links(page: Page) -> None:
    agent = page.turn(QUESTION)
    browser = page.open(f"#/session/{agent}")
    browser.click(".part.tool_use .helper")  # below the call that has its task
    helper = page.turn("Search the git history")
    browser.until(lambda: browser.place == f"#/session/{helper}")
    assert "Task" in browser.shows(".part.user .label b", "Task")
    assert "Held for 212 ms" in browser.shows(".held", "Held")
    browser.click(".held a")
    browser.until(lambda: "/turn/" in browser.place)
    browser.until(lambda: len(browser.texts(".turn .bar")) >= 6)
    browser.driver.back()
    browser.until(lambda: TITLE in browser.text(".parent"))
    browser.click(".parent a")
    browser.until(lambda: browser.text(".session-head h2") == TITLE)


def test_drift_is_shown_where_it_happened_and_an_image_as_a_thumbnail(page: Page) -> None:
    turn = page.turn("Good. This is the dashboard")
    browser = page.open(f"#/turn/{turn}/details")
    browser.shows(f"#turn-{turn} .cause", "System text 1 changed (a date or time).")
    assert browser.texts(".part.head.again summary b") == ["Instructions", "Tools"]
    loaded = "document.querySelector('.image img').naturalWidth"
    assert browser.until(lambda: browser.script(loaded)) == 640
    assert "image/png, 1280 × 720, 48.2 kB" in browser.text(".image")
    assert "700 tokens" in browser.text(".part.media .cost")
    assert "cached at the worker" in browser.shows(".turn-details", "Events")
    place = "document.querySelector('#turn-' + arguments[0]).getBoundingClientRect().top"
    assert abs(browser.script(place, turn) - 48) < 60  # at the top, below the header
    browser.keep("drift")


def test_instructions_that_changed_at_their_end_are_cached_and_the_history_is_not(
    browser: Browser,
) -> None:
    fold = Fold()
    bus = Bus(fold)
    system, question = "Always run the tests. " * 300, user("Why? " * 400)
    bus.turn(asked(question, system=[Text(system)]), range(2200), [1, 2], Text("x"))
    history = (question, answer(Text("x")), user("And now?"))
    ids = [*range(1600), *range(5000, 5630)]
    turn = bus.turn(
        asked(*history, system=[Text(system + "2026")]), ids, [3], Text("y"), cached=1584
    )
    with page_of(fold, browser) as page:
        page.open(f"#/turn/{turn.id}")
        head = browser.shows(".part.head.partly.again summary", "Instructions")
        assert head.endswith("93 % cached, the rest again")
        computed = browser.text(".part.history .cost")
        assert "computed again" in computed
        assert 400 < int(computed.split()[1]) <= turn.again
        # Its background has one color: words are as readable everywhere.
        style = "getComputedStyle(document.querySelector('.part.head')).backgroundImage"
        assert browser.script(style) == "none"


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


def test_the_time_line_has_no_gaps(browser: Browser) -> None:
    fold = Fold()
    bus = Bus(fold)
    turn = bus.turn(asked(user("Q")), range(40), [1], Text("x"), Text("y"))
    with page_of(fold, browser) as page:
        page.open(f"#/turn/{turn.id}/details")
        lanes = browser.shows(".timeline", "end of the answer")
        assert "2. text" in lanes
        bars = browser.script(
            "[...document.querySelectorAll('.timeline .track b')].map((one) => "
            "[one.offsetLeft, one.offsetLeft + one.offsetWidth])"
        )
        edges = sorted(bars)
        width = browser.script("document.querySelector('.timeline .track').offsetWidth")
        assert edges[0][0] == 0
        assert edges[-1][1] >= width - 2
        for (_, end), (start, _) in pairwise(edges):
            assert start - end <= 2


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


def test_search_opens_the_first_hit(page: Page) -> None:
    browser = page.open()
    browser.press("/")
    browser.press("apply_patch line 14\ue007")
    browser.until(lambda: browser.place.startswith("#/turn/"))
    found = "error: patch does not apply at line 14"
    browser.until(lambda: found in browser.texts(".part.result pre"))
    assert any("error" in text for text in browser.texts(".part.result .label"))


def test_all_content_is_text(page: Page) -> None:
    browser = page.open(f"#/session/{page.turn('Escape this')}")
    browser.until(lambda: len(browser.texts(".turn .bar")) == 2)
    browser.click(".part.head:nth-of-type(2) > summary")
    for place in ("#/?q=Escape", "#/", f"#/turn/{page.turn('Escape this')}/details"):
        browser.driver.get(page.address + place)
        browser.until(lambda: browser.texts(".row"))
        browser.until(lambda: browser.texts("#detail *"))
    assert team.HOSTILE in browser.shows(".part.user pre", "Escape")
    assert team.HOSTILE in browser.texts(".part.reasoning pre")
    assert "Turnwire inspector" in str(browser.script("document.title"))
    inside = "main :is(script, i > img, b > img, [onerror], a[href^=javascript], iframe)"
    assert browser.script("document.querySelectorAll(arguments[0]).length", inside) == 0


def test_invisible_characters_have_marks_and_do_not_move_the_text_around_them(
    browser: Browser,
) -> None:
    fold = Fold()
    bus = Bus(fold)
    question = "Read \u202elive\u202c\u200b and \x1b[31mred\x00"
    shown = ["U+202E", "U+202C", "U+200B", "ESC", "NUL"]
    said = "👨‍👩‍👧 ❤️ 1️⃣ می‌خواهم\ta\r\nb"  # these have a shape, or are seen by what they do
    call = Call("toolu_1", "Ba\u2066sh", '{"command": "ls\u00ad"}')
    turn = bus.turn(asked(user(question), session="s"), range(40), [1], Text(said), call)
    with page_of(fold, browser) as page:
        browser.size(1280, 900)
        page.open(f"#/turn/{turn.id}")
        browser.until(lambda: browser.texts(".part.tool_use"))
        for place in (".row .title", ".session-head h2", ".part.user pre"):
            assert _marks(browser, place) == shown
            assert browser.texts(place) == [question]  # copied as it is
            order = browser.script(_PLACES_OF_LETTERS, place, question.index("live"), 4)
            assert order == sorted(order)
        assert _marks(browser, ".part.text pre") == []
        assert _marks(browser, ".part.tool_use") == ["U+2066", "U+00AD"]
        assert browser.script("document.querySelector('.row .title').title") == (
            "Read [U+202E]live[U+202C][U+200B] and [ESC][31mred[NUL]"
        )
        assert "\u202e" not in str(browser.script("document.title"))
        browser.open(f"{page.address}#/?q=live")
        browser.until(lambda: browser.texts(".row mark"))
        assert _marks(browser, ".row .note") == shown


_PLACES_OF_LETTERS = """((place, start, count) => {
  const element = document.querySelector(place);
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const letters = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (let at = 0; at < node.length; at++) letters.push([node, at]);
  }
  return letters.slice(start, start + count).map(([node, at]) => {
    const range = document.createRange();
    range.setStart(node, at);
    range.setEnd(node, at + 1);
    return range.getBoundingClientRect().left;
  });
})(...arguments)"""


def _marks(browser: Browser, place: str) -> list[str]:
    """The names of the invisible characters in an element, as they are shown."""
    marks = "[...document.querySelector(arguments[0]).querySelectorAll('*')]"
    content = "getComputedStyle(one, '::before').content"
    found = browser.script(f"{marks}.map((one) => {content})", place)
    return [name.strip('"') for name in found if name.startswith('"')]


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


def test_an_open_session_stays_when_the_inspector_begins_again(browser: Browser) -> None:
    turn = Bus(first := Fold()).turn(asked(user("Before")), range(9), [1], Text("x"))
    Bus(second := Fold()).turn(asked(user("After")), range(9), [1], Text("x"))
    browser.size(1280, 900)
    with serving(first) as address:
        browser.open(f"{address}#/turn/{turn.id}")
        browser.until(lambda: "Before" in browser.texts(".part.user pre"))
    with serving(second, port=int(address.rpartition(":")[2].strip("/"))):
        browser.shows("#kept", "The inspector began again at ")
        assert "Before" in browser.texts(".part.user pre")
        browser.click("#kept a")
        browser.until(lambda: browser.texts(".row .title") == ["After"])
        browser.driver.get("about:blank")
    browser.driver.get_log("browser")  # the connection that was refused


def test_counts_of_a_turn_that_is_written_agree(browser: Browser) -> None:
    """All three come from the row, and wait for no answer of the server."""
    fold = Fold()
    bus = Bus(fold)
    turn = bus.begin(asked(user("Q")), range(9))
    bus.write(turn, [1, 2, 3])
    with page_of(fold, browser) as page:
        page.open(f"#/session/{turn}")
        browser.until(lambda: "3 written" in browser.text(".turn .bar"))
        browser.script("(window.fetch = () => new Promise(() => {})) && 1")
        bus.write(turn, [*range(1, 42)])
        browser.until(lambda: "→ 41" in browser.text(".row .figures"))
        assert "41 written" in browser.text(".turn .bar")
        assert browser.texts(".session-head .tiles dd")[4] == "41"


def test_a_turn_with_trouble_names_it(browser: Browser) -> None:
    fold = Fold()
    bus = Bus(fold)
    turn = bus.begin(asked(user("Q")), range(9))
    bus.write(turn, [1, 2])
    bus.send(TurnRequest(turn, "frontend-1", asked(user("Q")), 2, avoid=["worker-1"]))
    names = (turn, 2, "m", pack_ids(range(9)), "parser-1", "frontend-1")
    bus.send(GenerateRequest(*names, Sampling(), [], Raw(b"null")), "worker-2")
    with page_of(fold, browser) as page:
        page.open(f"#/session/{turn}")
        browser.shows(".bar .state.again", "⚠ attempt 2, on worker-2")
        title = browser.script("document.querySelector('.bar .state.again').title")
        assert title == "attempt: attempt 2, avoids worker-1"


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
