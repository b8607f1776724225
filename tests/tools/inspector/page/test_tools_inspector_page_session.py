"""A session on the inspector's page: its conversation, its costs, its time line."""

from itertools import pairwise

import pytest
from msgspec import Raw

from schemas.conversation import Call, Sampling, Text
from schemas.requests import GenerateRequest, TurnRequest
from schemas.token_ids import pack_ids
from tests.kit.conversations import user
from tests.tools.inspector import team
from tests.tools.inspector.browser import Browser, needs_chromium, serving
from tests.tools.inspector.by_hand import Bus, answer, asked
from tests.tools.inspector.page.recorded_page import QUESTION, TITLE, Page, page_of
from turnwire_tools.inspector.fold import Fold

pytestmark = [pytest.mark.slow, needs_chromium]


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
