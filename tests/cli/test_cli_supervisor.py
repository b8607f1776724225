"""Children are kept running, fail with a reason, end in order, and never outlive the supervisor."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from services.cli.up.supervisor import FIRST_BACKOFF_S, ChildFailed, ChildSpec, Display, Supervisor
from tests.kit.waiting import LIMIT_S, eventually, gone, until_gone


class Watched(Display):
    """A supervisor and its output, which tests can wait for."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.reports: list[str] = []
        self.events: list[dict[str, str]] = []
        self._news = asyncio.Event()
        self.supervisor = Supervisor(self)

    def relay(self, name: str, line: str) -> None:
        self.lines.append((name, line))
        self._news.set()

    def report(self, text: str, level: str = "info", event: str = "", **fields: str) -> None:
        self.reports.append(f"{level}: {text}")
        self.events.append({"event": event, **fields})
        self._news.set()

    def advance(self, name: str, text: str) -> None:
        """Progress of a download."""

    async def until(self, count: int) -> None:
        while len(self.lines) < count:
            self._news.clear()
            await self._news.wait()


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    watched = Watched()
    yield watched
    await watched.supervisor.kill()


def python(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", code]


SLEEPER = "import signal, time; print('up'); signal.pause()"


async def test_lines_of_both_streams_have_the_name(watched: Watched) -> None:
    code = "import os, sys; print(os.environ['EXTRA']); print('x' * 3_000_000, file=sys.stderr)"
    await watched.supervisor.start(ChildSpec("a", python(code + "; input()"), {"EXTRA": "1"}))
    await watched.until(2)
    assert watched.lines[0] == ("a", "1")
    assert watched.lines[1][1].startswith("xxx"), "a long line comes in pieces"


async def test_end_is_told_with_the_id_that_the_process_has(watched: Watched) -> None:
    """Another one after each start, as ids of processes on the bus are."""
    ended: list[str] = []
    watched.supervisor.on_end.append(ended.append)
    watched.supervisor.ready = True
    code = """
from services.runtime.config.service import ServiceConfig
from services.runtime.process import Process
print(Process("worker", ServiceConfig(id="a", log_level="error")).id)
"""
    await watched.supervisor.start(ChildSpec("a", python(code)))
    await watched.until(2)
    await eventually(lambda: len(ended) >= 2)
    assert ended[:2] == [line for _, line in watched.lines[:2]]
    assert ended[0] != ended[1]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times for which the supervisor waited before a restart. None of them passes."""
    sleep, found = asyncio.sleep, list[float]()

    async def pass_at_once(delay: float) -> None:
        if delay >= FIRST_BACKOFF_S:
            found.append(delay)
            delay = 0
        await sleep(delay)

    monkeypatch.setattr(asyncio, "sleep", pass_at_once)
    return found


@pytest.mark.parametrize(("steady_s", "expected"), [(10.0, [0.5, 1.0, 2.0]), (0.0, [0.5] * 3)])
async def test_child_that_dies_is_started_again(
    steady_s: float,
    expected: list[float],
    watched: Watched,
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Soon each time, if it had run for a while."""
    monkeypatch.setattr("services.cli.up.supervisor.STEADY_S", steady_s)
    watched.supervisor.ready = True
    await watched.supervisor.start(ChildSpec("a", python(SLEEPER)))
    children = []
    for count in (1, 2, 3):
        await watched.until(count)
        child = watched.supervisor.pid("a")
        assert child is not None
        children.append(child)
        os.kill(child, signal.SIGKILL)
    await watched.until(4)
    assert len({*children, watched.supervisor.pid("a"), None}) == 5
    assert pauses == expected
    assert watched.reports == [
        f"warning: a ended (killed by SIGKILL); starting it again in {pause:g} s"
        for pause in expected
    ]
    ended = {"event": "process.ended", "ended": "a", "status": "killed by SIGKILL"}
    assert watched.events == [ended] * 3


async def test_child_that_does_not_start_is_reported(
    watched: Watched, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if each of its attempts takes long."""
    monkeypatch.setattr("services.cli.up.supervisor.STEADY_S", 0.0)
    await watched.supervisor.start(ChildSpec("a", python("raise SystemExit(1)")))
    with pytest.raises(ChildFailed, match="a does not run: status 1"):
        await watched.supervisor.raise_on_failure()
    assert len(watched.reports) == 2
    assert pauses == [0.5, 1.0]


async def test_other_models_go_on_without_one_that_does_not_start(
    watched: Watched, pauses: list[float]
) -> None:
    supervisor = watched.supervisor
    await supervisor.start(ChildSpec("good", python(SLEEPER), group="good"))
    await supervisor.start(ChildSpec("bad", python("raise SystemExit(1)"), group="bad"))
    await supervisor.start(ChildSpec("wrong", python("raise SystemExit(2)"), group="wrong"))
    await watched.until(1)
    async with asyncio.timeout(LIMIT_S):
        while supervisor.failed != {"bad", "wrong"} or len(pauses) < 5:
            await asyncio.sleep(0.01)
    assert "error: wrong does not run: status 2; the other models go on" in watched.reports
    assert "error: bad does not run: status 1; the other models go on" in watched.reports
    assert supervisor.pid("good") is not None
    assert supervisor.pid("wrong") is None, "a wrong configuration is not tried again"


async def test_failure_of_the_last_model_ends_all(watched: Watched, pauses: list[float]) -> None:
    for name in ("a", "b"):
        await watched.supervisor.start(ChildSpec(name, python("raise SystemExit(2)"), group=name))
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(ChildFailed, match="does not run: status 2"):
            await watched.supervisor.raise_on_failure()
    assert len(watched.reports) == 1


async def test_wrong_configuration_is_not_tried_again(watched: Watched) -> None:
    watched.supervisor.ready = True
    await watched.supervisor.start(
        ChildSpec("a", python("print('begin'); print('no key'); raise SystemExit(2)"))
    )
    with pytest.raises(ChildFailed, match="a does not run: status 2: no key"):
        await watched.supervisor.raise_on_failure()
    assert watched.reports == []


async def test_stop_waits_for_the_end(watched: Watched) -> None:
    code = (
        "import signal, sys\n"
        "def end(*_): print('ending'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); print('up'); signal.pause()"
    )
    for name in ("a", "b"):
        await watched.supervisor.start(ChildSpec(name, python(code)))
    await watched.until(2)
    await watched.supervisor.stop(["a"])
    assert watched.lines[2:] == [("a", "ending")]
    assert watched.supervisor.pid("a") is None
    assert watched.supervisor.pid("b") is not None
    assert watched.supervisor.names == ["a", "b"]


async def test_kill_ends_grandchildren(watched: Watched) -> None:
    code = (
        "import subprocess, sys, signal\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print(child.pid); signal.pause()"
    )
    await watched.supervisor.start(ChildSpec("a", python(code)))
    await watched.until(1)
    grandchild = int(watched.lines[0][1])
    await watched.supervisor.kill()
    await until_gone(grandchild)


async def test_no_child_outlives_a_killed_supervisor() -> None:
    code = f"""
import asyncio
from services.cli.up.supervisor import Display, ChildSpec, Supervisor
class Printing(Display):
    def relay(self, name, line):
        print(up.pid(name), flush=True)
    report = advance = lambda *args, **fields: print(args)
up = Supervisor(Printing())
async def main():
    await up.start(ChildSpec("a", [{sys.executable!r}, "-u", "-c", {SLEEPER!r}]))
    await asyncio.Event().wait()
asyncio.run(main())
"""
    owner = await asyncio.create_subprocess_exec(*python(code), stdout=subprocess.PIPE)
    assert owner.stdout is not None
    child = int(await owner.stdout.readline())
    assert not gone(child)
    owner.kill()
    await owner.wait()
    await until_gone(child)
