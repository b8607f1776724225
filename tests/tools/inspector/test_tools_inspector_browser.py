"""The inspector's page in a real browser, over a running `turnwire up`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.inspector.browser import Browser, needs_chromium, running
from tests.tools.inspector.walk import TURNS, play

CLOSE_S = 0.3
"""Generous: reading a request takes milliseconds, and more on a loaded machine."""
pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture
def browser() -> Iterator[Browser]:
    opened = Browser()
    yield opened
    opened.driver.quit()


def logged(log: Path, request: str) -> dict[str, Any]:
    """The log line of a request."""
    lines = [line for line in log.read_text().split("\n") if line.startswith("{")]
    entries = map(json.loads, lines)
    return next(entry for entry in entries if entry.get("request") == f"req_{request}")


def find_why_turn_seven_was_slow(browser: Browser, request: str) -> None:
    """What docs/inspector.md describes: from a request id to the cause, with the keyboard."""
    browser.until(lambda: browser.script("document.body.dataset.rows") == str(TURNS))
    browser.press("/")
    browser.press(f"req_{request}\ue007")  # Enter
    assert browser.shows(".why .cause", ".") == "System text 1 changed (a date or time)."
    top = "document.querySelector('.why').getBoundingClientRect().top"
    browser.until(lambda: 48 < browser.script(top) < 200)  # in view
    assert "tokens of the turn before and its answer could not be reused" in browser.text(".price")
    assert browser.place == f"#/turn/{request}?q=req_{request}"
    changes = browser.text(".changes")
    assert "Today's date is 2026-11-23." in changes
    assert "Today's date is 2026-11-24." in changes


def test_page_shows_why_turn_seven_computed_its_prompt_again(
    browser: Browser, tmp_path: Path
) -> None:
    pace = ("--prefill-tokens-per-s", "20000", "--token-delay-ms", "5")
    up = ("up", "--port", "0", *pace, "--ready-file", str(tmp_path / "ready.json"))
    with running(tmp_path, "up", *up, ready="is served at"):
        url = (tmp_path / "ready.json").read_text().partition('"url":"')[2].partition('"')[0]
        with running(tmp_path, "inspect", "inspect", "--port", "0", ready="listening on") as log:
            requests = play(url)
            address = next(word for word in log.split() if word.startswith("http://127.0.0.1:"))
            browser.open(address)
            find_why_turn_seven_was_slow(browser, requests[-1])
            browser.keep("turn")
            browser.shows(".was", "23")  # the tokenizer of the running instance was found
            # It places the texts exactly, too.
            assert browser.script("document.querySelector('.part.user .cost').title") == ""

            browser.press("e")
            assert "Bash" in browser.shows(".deliveries", "Bash")
            browser.script("document.querySelector('.turn-details').scrollIntoView()")
            browser.keep("details")

            # Its times are those of the log, which begins a little earlier.
            row = browser.script(
                "fetch('/api/turns/' + arguments[0]).then((found) => found.json())", requests[-1]
            )
            line = logged(tmp_path / "up.log", requests[-1])
            assert 0 <= line["ttft"] - row["ttft_ms"] / 1000 < CLOSE_S
            assert 0 <= line["seconds"] - row["ms"] / 1000 < CLOSE_S

            browser.press("s")
            count = "document.querySelectorAll('#chart a').length"
            browser.until(lambda: browser.script(count) == TURNS)
            assert browser.place.startswith("#/session/")
            assert browser.errors() == []
