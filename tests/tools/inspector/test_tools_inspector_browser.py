"""The inspector's page in a real browser, over a running `turnwire up`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tools.inspector.browser import LIMIT_S, Browser, needs_chromium
from tests.tools.inspector.walk import TURNS, play

pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture
def browser() -> Iterator[Browser]:
    opened = Browser()
    yield opened
    opened.driver.quit()


@contextmanager
def running(state: Path, name: str, *argv: str, ready: str) -> Iterator[str]:
    """A command of `turnwire`; gives its output up to a line that contains `ready`. The instances
    of the machine are out of its sight."""
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    command = [sys.executable, "-m", "services.cli.main", *argv]
    log = state / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        deadline = time.monotonic() + LIMIT_S
        while ready not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield log.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(LIMIT_S)
        finally:
            process.kill()


def find_why_turn_seven_was_slow(browser: Browser, request: str) -> None:
    """What docs/inspector.md describes: from a request id to the cause, with the keyboard."""
    browser.until(lambda: browser.script("document.body.dataset.rows") == str(TURNS))
    browser.press("/")
    browser.press(f"req_{request}\ue007")  # Enter
    assert browser.shows(".why .cause", ".") == "System text 1 changed (a date or time)."
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

            browser.press("s")
            count = "document.querySelectorAll('#chart a').length"
            browser.until(lambda: browser.script(count) == TURNS)
            assert browser.place.startswith("#/session/")
            assert browser.errors() == []
