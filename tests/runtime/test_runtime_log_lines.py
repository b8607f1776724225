"""Log lines: nothing lost, nothing out of order, few writes."""

import asyncio
import io
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from services.runtime.config import FrontendConfig
from services.runtime.observability import log_lines
from services.runtime.observability.log_lines import EVERY_S, LineWriter, printable
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


def test_without_a_loop_each_line_is_written_at_once() -> None:
    stream = Stream()
    lines = LineWriter(stream)
    lines.info("one")
    lines.info("two")
    assert stream.writes == ["one\n", "two\n"]


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


async def test_a_thread_beside_the_loop_loses_nothing() -> None:
    stream = Stream()
    lines = LineWriter(stream)

    def say() -> None:
        for number in range(200):
            lines.info(f"thread {number}")

    thread = threading.Thread(target=say)
    thread.start()
    for number in range(200):
        lines.info(f"loop {number}")
    await asyncio.to_thread(thread.join)
    lines.warning("end")
    said = "".join(stream.writes).splitlines()
    assert len(said) == 401
    assert [line for line in said if line.startswith("thread")] == [
        f"thread {number}" for number in range(200)
    ]
    assert [line for line in said if line.startswith("loop")] == [
        f"loop {number}" for number in range(200)
    ]


async def test_a_stream_that_was_closed_ends_nothing() -> None:
    stream = io.StringIO()
    lines = LineWriter(stream)
    lines.info("one")
    lines.info("two")
    stream.close()
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(2 * EVERY_S, over.set)  # after the writer's own timer
    await over.wait()
    assert failures == []


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


async def test_every_level_of_a_log_comes_through() -> None:
    stream = Stream()
    log = open_log(FrontendConfig(log_level="debug"), stream)
    for level in ("debug", "info", "warning", "error", "critical"):
        getattr(log, level)("said")
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("failed")
    said = "".join(stream.writes).splitlines()
    assert [line.partition('"level":"')[2].partition('"')[0] for line in said] == [
        "debug", "info", "warning", "error", "critical", "error",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["plain", "a b", "h\u00e9 \U0001f600", "C:\\path"])
def test_text_that_can_be_printed_stays(text: str) -> None:
    assert printable(text) == text


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
