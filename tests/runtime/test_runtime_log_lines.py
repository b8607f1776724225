"""Log lines: nothing lost, nothing out of order, few writes."""

import asyncio
import io
import subprocess
import sys
from types import SimpleNamespace

import pytest

from services.runtime.config import FrontendConfig
from services.runtime.observability import log_lines
from services.runtime.observability.log_lines import LineWriter, printable
from services.runtime.observability.telemetry import open_log


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the clock by which lines are a burst."""
    monkeypatch.setattr(log_lines, "time", SimpleNamespace(monotonic=lambda: 100.0))


class Stream(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.written = asyncio.Event()

    def write(self, text: str) -> int:
        self.writes.append(text)
        self.written.set()
        return len(text)


async def test_the_first_line_is_written_at_once_and_a_following_burst_together() -> None:
    stream = Stream()
    lines = LineWriter(stream)
    for number in range(5):
        lines.info(str(number))
    assert stream.writes == ["0\n"]
    stream.written.clear()
    await stream.written.wait()
    assert stream.writes == ["0\n", "1\n2\n3\n4\n"]


async def test_a_warning_is_written_at_once_with_all_before_it() -> None:
    stream = Stream()
    lines = LineWriter(stream)
    lines.info("one")
    lines.info("two")
    lines.debug("three")
    lines.error("four")
    assert stream.writes == ["one\n", "two\nthree\nfour\n"]


def test_waiting_lines_are_written_when_the_process_ends() -> None:
    program = (
        "import asyncio, sys\n"
        "from services.runtime.observability.log_lines import LineWriter\n"
        "async def main():\n"
        "    lines = LineWriter(sys.stderr)\n"
        "    [lines.info(str(number)) for number in range(3)]\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == "0\n1\n2\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", "\\x1b[31m"),
        ("a\r\nb", "a\\r\\nb"),
        ("\x9b2J", "\\x9b2J"),
        ("\u2028", "\\u2028"),
    ],
)
def test_control_characters_are_shown_as_their_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_client_cannot_write_to_the_operators_terminal() -> None:
    stream = io.StringIO()
    log = open_log(FrontendConfig(log_format="console"), stream)
    log.warning("request", path="/v1/\x1b]0;title\x07\nfake line", user_agent="\x9b31m")
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
