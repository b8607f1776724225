"""Chromium, and a server of the inspector's page in a thread, for tests."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from PIL import Image, ImageDraw

from services.runtime.request_headers import AllowedHosts
from turnwire_tools.inspector.bus_follower import TurnSource
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.images import InspectorImages
from turnwire_tools.inspector.server import InspectorServer

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
_SCREENSHOTS = os.environ.get("INSPECTOR_SCREENSHOTS")
"""INSPECTOR_SCREENSHOTS=docs/inspector makes the pictures of docs/inspector.md again."""
LIMIT_S = 240.0
"""Generous: starting everything on a loaded machine takes a minute."""

needs_chromium = pytest.mark.skipif(
    not CHROMIUM or not DRIVER, reason="no chromium with chromedriver on this machine"
)


class Browser:
    """A page in Chromium."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self.size(1280, 900)

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Sets the size of the page, and which colors the browser prefers."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, address: str) -> None:
        """Opens a page, also where only the part after `#` differs from the one that is open."""
        self.driver.get("about:blank")
        self.driver.get(address)

    def script(self, text: str, *values: Any) -> Any:
        return self.driver.execute_script(f"return {text}", *values)

    def text(self, selector: str) -> str:
        """The text of an element; "" where there is none."""
        return str(self.script("document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that are shown."""
        found = "[...document.querySelectorAll(arguments[0])].filter((one) => one.offsetParent)"
        return list(self.script(f"{found}.map((one) => one.textContent)", selector))

    def click(self, selector: str) -> None:
        """Clicks the first such element, once it is there."""
        self.until(lambda: self.script("Boolean(document.querySelector(arguments[0]))", selector))
        self.script("document.querySelector(arguments[0]).click()", selector)

    @property
    def place(self) -> str:
        """The part of the address that names the view."""
        return str(self.script("location.hash"))

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
        if _SCREENSHOTS:
            Path(_SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            self.until(lambda: not self.texts(".turn.target"))  # marked for a moment
            frames = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
            self.driver.execute_async_script(frames)  # what was changed is painted
            self.driver.save_screenshot(f"{_SCREENSHOTS}/{name}.png")

    def errors(self) -> list[str]:
        """What the browser complained of: scripts that fail, and what the policy forbids."""
        entries = self.driver.get_log("browser")
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]


class Pictures:
    """A bucket with one picture for every hash."""

    def __init__(self) -> None:
        picture = Image.new("RGB", (640, 360), "#10202a")
        draw = ImageDraw.Draw(picture)
        for at in range(40):
            height = 20 + (at * 37) % 90 if at < 24 else 0
            draw.rectangle((20 + 15 * at, 320 - height, 30 + 15 * at, 320), fill="#d85c4a")
        draw.line((380, 30, 380, 330), fill="#9fb8c8", width=2)
        data = BytesIO()
        picture.save(data, "PNG")
        self._data = data.getvalue()

    async def get(self, image: str) -> bytes:
        return self._data


@contextmanager
def serving(fold: Fold, source: TurnSource | None = None, port: int = 0) -> Iterator[str]:
    """Serves the page of a fold from a thread; gives its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    images = InspectorImages()
    images.connect(Pictures())  # type: ignore[arg-type]
    server = InspectorServer(
        fold,
        source or TurnSource("team.jsonl", live=False),
        AllowedHosts([]),
        key=None,
        images=images,
    )
    runner = web.AppRunner(server.app(), shutdown_timeout=0.1)

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/"

    async def stop() -> None:
        await runner.cleanup()
        streams = asyncio.all_tasks() - {asyncio.current_task()}  # of pages that are open
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result(LIMIT_S)
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(LIMIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


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
