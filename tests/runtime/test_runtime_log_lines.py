"""Log lines: nothing lost, nothing out of order, few writes."""

import io
import subprocess
import sys
from types import SimpleNamespace

import pytest

from services.runtime.config import FrontendConfig
from services.runtime.observability import log_lines
from services.runtime.observability.log_lines import LineWriter
from services.runtime.observability.telemetry import open_log
from tests.kit.waiting import eventually


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the clock by which lines are a burst."""
    monkeypatch.setattr(log_lines, "time", SimpleNamespace(monotonic=lambda: 100.0))


class Stream(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return len(text)


async def test_lines_of_a_burst_are_written_together_and_a_warning_at_once() -> None:
    stream = Stream()
    lines = LineWriter(stream)
    for number in range(5):
        lines.info(str(number))
    assert stream.writes == ["0\n"]
    await eventually(lambda: len(stream.writes) == 2)
    lines.debug("five")
    lines.error("six")
    assert stream.writes == ["0\n", "1\n2\n3\n4\n", "five\nsix\n"]


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


def test_a_client_cannot_write_to_the_operators_terminal() -> None:
    stream = io.StringIO()
    log = open_log(FrontendConfig(log_format="console"), stream)
    log.warning("request", path="/v1/\x1b]0;title\x07\nfake line", user_agent="\x9b31m")
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert "\\x9b31m" in line
