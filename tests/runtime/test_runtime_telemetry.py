"""Logs come out typed, at their level and in few writes; metrics and health answer over HTTP."""

import io
import platform
import subprocess
import sys
from types import SimpleNamespace

import aiohttp
import msgspec
import pytest

from services.runtime.config import FrontendConfig
from services.runtime.health import HealthServer
from services.runtime.observability import log_lines
from services.runtime.observability.log_lines import LineWriter
from services.runtime.observability.telemetry import new_registry, open_log
from tests.kit.waiting import eventually


def test_log_lines_are_json_with_what_was_bound() -> None:
    stream = io.StringIO()
    log = open_log(FrontendConfig(), stream, stage="frontend", id="f1")
    log.debug("too fine")
    log.info("turn", turn="t1", tokens=3)
    line = msgspec.json.decode(stream.getvalue(), type=dict[str, object])
    assert str(line.pop("time")).endswith("Z")
    bound = {"level": "info", "event": "turn", "stage": "frontend", "id": "f1"}
    assert line == {**bound, "turn": "t1", "tokens": 3}


async def test_health_is_served() -> None:
    reasons = ["loading the model", None]
    server = HealthServer(new_registry(), lambda: reasons.pop(0))
    port = await server.start("127.0.0.1", 0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        async with session.get("/live") as live:
            assert live.status == 200
        for expected in (
            (503, {"status": "not ready", "reason": "loading the model"}),
            (200, {"status": "ready"}),
        ):
            async with session.get("/ready") as ready:
                assert (ready.status, await ready.json()) == expected
        async with session.get("/metrics") as metrics:
            assert "process_cpu_seconds_total" in await metrics.text()
            assert metrics.content_type == "text/plain"
        openmetrics = {"Accept": "application/openmetrics-text; version=1.0.0"}
        async with session.get("/metrics", headers=openmetrics) as metrics:
            assert (await metrics.text()).endswith("# EOF\n")
    await server.stop()


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


PROGRAM = """
import resource
from services.runtime.observability.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        [bytes(300_000) for _ in range(4)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
assert keep_freed_memory()
faults()
print(before, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_buffers_that_come_and_go_cost_no_pages() -> None:
    counts = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True)
    before, after = map(int, counts.split())
    assert 10 * after < before
