"""Paired runs of tasks on two servers: the counts of turns and calls, and the test of their
differences."""

import io
import itertools
import operator
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import json as codec
from rich.console import Console

from schemas import subjects
from schemas.conversation import Conversation, Message, Text
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Dispatch,
    Finish,
    FinishReason,
    TurnEvent,
    Usage,
)
from schemas.frames import EventEntry, EventFrame, TurnRequest
from services.cli.main import main
from tests.kit.nats import NatsServer
from tests.kit.waiting import LIMIT_S
from turnwire_tools.behaviour import comparison, sign_flip_p

ROOT = Path(__file__).parents[2]


def test_p_is_the_share_of_signs_with_a_sum_as_far_from_zero() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        differences = [rng.randrange(-4, 5) for _ in range(rng.randrange(11))]
        sums = []
        for signs in itertools.product((1, -1), repeat=len(differences)):
            sums.append(abs(sum(map(operator.mul, signs, differences))))
        share = sum(one >= abs(sum(differences)) for one in sums) / len(sums)
        assert sign_flip_p(differences) == share, seed


def test_p_of_known_cases() -> None:
    assert sign_flip_p([]) == sign_flip_p([0, 0, 0]) == sign_flip_p([1, -1]) == 1.0
    assert sign_flip_p([3] * 10) == sign_flip_p([-3] * 10) == 2 / 2**10
    assert sign_flip_p([1] * 50) < 1e-14
    assert sign_flip_p([1] * 20 + [-1] * 28 + [0] * 2) == pytest.approx(0.3123, abs=0.001)


def drawn(rng: random.Random, tasks: int, effect: int) -> list[int]:
    """Differences of two runs of tasks with 3 to 12 calls, each of which a side does in up to three
    calls more."""
    return [rng.randrange(4) + effect - rng.randrange(4) for _ in range(tasks)]


def test_effect_is_found_and_chance_is_not_taken_for_one() -> None:
    rng = random.Random(7)
    without = [sign_flip_p(drawn(rng, 20, 0)) for _ in range(400)]
    assert sum(p < 0.05 for p in without) / 400 < 0.08
    assert sum(p < 0.5 for p in without) / 400 > 0.3
    assert all(sign_flip_p(drawn(rng, 20, 2)) < 0.01 for _ in range(100))


def test_table_has_means_of_a_run_and_tasks_by_direction() -> None:
    a = [Counter(turns=2, calls=4), Counter(turns=2, calls=2), Counter(turns=6, calls=0)]
    b = [Counter(turns=2, calls=8), Counter(turns=4, calls=1), Counter(turns=6, calls=3)]
    console = Console(width=120, file=io.StringIO())
    with console.capture() as shown:
        console.print(comparison({"a": a, "b": b}, 2))
    rows = [
        re.split(r"\s*│\s*", line.strip("│ \n")) for line in shown.get().splitlines() if "│" in line
    ]
    assert rows == [
        ["turns", "1.67", "2.00", "1, 0, 2", "1.0000"],
        ["calls", "1.00", "2.00", "2, 1, 0", "0.5000"],
    ]


AGENT = """
import socket, sys
host, port, url, task = sys.argv[1:]
with socket.create_connection((host, int(port))) as bus:
    reader = bus.makefile("rb")
    reader.readline()
    bus.sendall(b'CONNECT {"verbose": false}\\r\\n' + open(f"{task}.{url[-1]}", "rb").read() + b"PING\\r\\n")
    while reader.readline() != b"PONG\\r\\n":
        pass
"""
"""An agent that publishes what is in a file for its task and side, and ends when the bus has it."""


def publish(subject: str, message: object) -> bytes:
    data = codec.encode(message)
    return f"PUB {subject} {len(data)}\r\n".encode() + data + b"\r\n"


def turn(name: str, calls: int) -> bytes:
    """The messages of a turn that makes calls."""
    conversation = Conversation("m", [Message("user", [Text("Go.")])])
    events: list[TurnEvent] = []
    for block in range(calls):
        events += [BlockStart(block, "tool_use", "ls", f"c{block}"), Delta(block, 0, "{}")]
        events += [Dispatch(block, f"c{block}", "ls", "{}"), BlockStop(block, True, 2)]
    events.append(Finish(FinishReason.STOP, calls, Usage(output=1)))
    return publish(subjects.turn("m", "p"), TurnRequest(name, "f", conversation)) + publish(
        subjects.events("f"), EventFrame("s", 1, [EventEntry(name, 1, events)])
    )


class Trial:
    """Tasks with written turns on both sides, on one bus."""

    def __init__(self, nats: NatsServer, directory: Path) -> None:
        self.nats, self.directory = nats, directory
        self.agent = directory / "agent.py"
        self.agent.write_text(AGENT)
        self.tasks: list[Path] = []

    def task(self, **sides: Sequence[int]) -> None:
        """Adds a task: for each side, the calls of each turn."""
        path = self.directory / f"task{len(self.tasks)}"
        self.tasks.append(path)
        for side, calls in sides.items():
            path.with_suffix(f".{side}").write_bytes(
                b"".join(turn(f"t{n}", count) for n, count in enumerate(calls))
            )

    def run(self, *arguments: str) -> int:
        tasks = self.directory / "tasks.txt"
        tasks.write_text("# tasks\n\n" + "".join(f"{task}\n" for task in self.tasks))
        sides = ("--a", "http://a", "--b", f"http://b,{self.nats.url}", "--nats-url", self.nats.url)
        program = (sys.executable, str(self.agent), "127.0.0.1", str(self.nats.port))
        agent = (*program, "{url}", "{task}")
        return main(["behaviour", str(tasks), *sides, *arguments, "--", *agent])


@pytest.fixture
def trial(nats: NatsServer, tmp_path: Path) -> Trial:
    return Trial(nats, tmp_path)


def test_turns_and_calls_of_both_sides_are_counted(
    trial: Trial, capsys: pytest.CaptureFixture[str]
) -> None:
    trial.task(a=[1, 0], b=[2, 1, 0])
    trial.task(a=[0], b=[3])
    assert trial.run("--repeats", "2") == 0
    out, err = capsys.readouterr()
    runs = re.findall(r"task (\d) at (\w): \{'turns': (\d), 'calls': (\d)\}", err)
    once = [("1", "a", "2", "1"), ("1", "b", "3", "3"), ("2", "b", "1", "3"), ("2", "a", "1", "0")]
    assert runs == [*once, *(once[at] for at in (1, 0, 3, 2))]
    assert re.search(r"turns\W+1\.50\W+2\.00\W+1, 0, 1\W+1\.0000", out)
    assert re.search(r"calls\W+0\.50\W+3\.00\W+2, 0, 0\W+0\.5000", out)


def test_agent_that_uses_another_server_is_an_error(
    trial: Trial, capsys: pytest.CaptureFixture[str]
) -> None:
    trial.task(a=[], b=[1])
    assert trial.run() == 1
    assert "the agent made no turn at a: does it use http://a?" in capsys.readouterr().err


def test_agent_that_does_not_end_is_ended(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    trial.task(a=[1], b=[1])
    trial.agent.write_text(AGENT + "import time\ntime.sleep(600)\n")
    assert trial.run("--timeout-s", "3") == 0
    assert capsys.readouterr().err.count("'turns': 1") == 2


@pytest.mark.parametrize(
    ("lines", "agent", "message"),
    [("# none\n", ["x"], "there is no task"), ("a\n", [], "after --")],
)
def test_missing_tasks_and_agent_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, agent: list[str], message: str
) -> None:
    tasks = tmp_path / "tasks"
    tasks.write_text(lines)
    sides = ("--a", "http://a", "--b", "http://b")
    assert main(["behaviour", str(tasks), *sides, "--", *agent]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_bus_of_each_running_server_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "tasks").write_text(
        "Run `pwd` with your shell tool.\nRun `ls` and then `date` with your shell tool.\n"
    )
    (tmp_path / "work").mkdir()
    agent = [sys.executable, str(ROOT / "examples" / "tool_calls.py"), "{url}", "{task}"]
    with (
        started(tmp_path / "a") as a,
        started(tmp_path / "b", "--no-strip-anthropic-preamble") as b,
    ):
        sides = ["--a", a, "--b", b, "--directory", str(tmp_path / "work")]
        assert main(["behaviour", str(tmp_path / "tasks"), *sides, "--", *agent]) == 0
    out, err = capsys.readouterr()
    assert err.count("task 1 at a: {'turns': 2, 'calls': 1}") == 1
    assert err.count("task 2 at b: {'turns': 3, 'calls': 2}") == 1
    assert re.search(r"calls\W+1\.50\W+1\.50\W+0, 0, 2\W+1\.0000", out)


@contextmanager
def started(ready: Path, *flags: str) -> Iterator[str]:
    """A `turnwire up` of the demo model; its URL."""
    up = [sys.executable, "-m", "services.cli.main", "up"]
    command = [*up, "--port=0", f"--ready-file={ready}", *flags]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + LIMIT_S
            while not ready.exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield codec.decode(ready.read_bytes())["url"]
        finally:
            process.terminate()
