"""The inspector's page in a real browser, over a running `turnwire up`.

INSPECTOR_SCREENSHOTS=docs/inspector makes the pictures of docs/inspector.md again.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.tools.inspector.walk import TURNS, play

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SCREENSHOTS = os.environ.get("INSPECTOR_SCREENSHOTS")
LIMIT_S = 240.0
"""Generous: starting everything on a loaded machine takes a minute."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not CHROMIUM or not DRIVER, reason="no chromium with chromedriver on this machine"
    ),
]


class Browser:
    """A page in Chromium."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self.driver.set_window_size(1160, 900)

    def script(self, text: str, *values: Any) -> Any:
        return self.driver.execute_script(f"return {text}", *values)

    def text(self, selector: str) -> str:
        """The text of an element; "" where there is none."""
        return str(self.script("document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def until(self, condition: Callable[[], Any]) -> Any:
        """Polls until a condition is true; returns its value."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            if value := condition():
                return value
            time.sleep(0.05)
        raise AssertionError(f"not within {LIMIT_S} s; the page has: {self.text('body')[:2000]}")

    def shows(self, selector: str, text: str) -> str:
        """Waits until an element has a text; returns all of it."""
        self.until(lambda: text in self.text(selector))
        return self.text(selector)

    def press(self, keys: str) -> None:
        webdriver.ActionChains(self.driver).send_keys(keys).perform()

    def keep(self, name: str) -> None:
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            frames = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
            self.driver.execute_async_script(frames)  # what was changed is painted
            self.driver.save_screenshot(f"{SCREENSHOTS}/{name}.png")

    def errors(self) -> list[str]:
        """What the browser complained of: scripts that fail, and what the policy forbids."""
        entries = self.driver.get_log("browser")
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]


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
    assert browser.shows("#cause", ".") == "System text 1 changed (a date or time)."
    assert "tokens of turn 6 and its answer could not be reused" in browser.text("#cost")
    changes = browser.text("#changes")
    assert "Today's date is 2026-11-23." in changes
    assert "Today's date is 2026-11-24." in changes
    assert "Bash" in browser.text("#deliveries")


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
            browser.driver.get(address)
            find_why_turn_seven_was_slow(browser, requests[-1])
            browser.keep("turn")
            browser.shows(".was", "23")  # the tokenizer of the running instance was found

            browser.script("document.querySelector('#timeline').scrollIntoView()")
            browser.keep("timeline")

            browser.press("s")
            count = "document.querySelectorAll('#chart a').length"
            browser.until(lambda: browser.script(count) == TURNS)
            assert "System text 1 changed" in browser.text("#turns").replace("system", "System")
            browser.keep("session")

            assert browser.errors() == []
