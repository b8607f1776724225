"""Paired runs of tasks on two servers: the counts of turns and calls, and the test of their
differences."""

import itertools
import operator
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import json as codec

from schemas import subjects
from schemas.events import TurnEvent
from schemas.frames import EventEntry, EventFrame
from schemas.requests import TurnRequest
from services.cli.main import main
from tests.kit.conversations import conversation
from tests.kit.events import call, finish
from tests.kit.nats import NatsServer
from turnwire_tools.behaviour import Comparison, ResultFile, sign_flip_p


def test_p_is_the_share_of_signs_with_a_sum_as_far_from_zero_and_never_zero() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        differences = [rng.randrange(-4, 5) for _ in range(rng.randrange(11))]
        sums = []
        for signs in itertools.product((1, -1), repeat=len(differences)):
            sums.append(abs(sum(map(operator.mul, signs, differences))))
        share = sum(one >= abs(sum(differences)) for one in sums) / len(sums)
        assert sign_flip_p(differences) == share, seed
    assert sign_flip_p([3] * 1100) > 0.0


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
    events: list[TurnEvent] = []
    for block in range(calls):
        events += call(block, "ls", "{}", call_id=f"c{block}")
    events.append(finish(calls))
    return publish(subjects.turn("m", "p"), TurnRequest(name, "f", conversation())) + publish(
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


def test_turns_and_calls_of_both_sides_are_counted_and_compared(
    trial: Trial, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial.task(a=[1, 0], b=[2, 1, 0])
    trial.task(a=[0], b=[3])
    into = tmp_path / "result.json"
    assert trial.run("--repeats", "2", "--into", str(into)) == 0
    out = capsys.readouterr().out
    assert re.search(r"turns\W+1\.50\W+2\.00\W+1, 0, 1\W+1\.0000", out)
    assert re.search(r"calls\W+0\.50\W+3\.00\W+2, 0, 0\W+0\.5000", out)

    result = codec.decode(into.read_bytes(), type=ResultFile)
    runs = [(one.task, one.side, one.turns, one.calls) for one in result.runs]
    once = [("1", "a", 2, 1), ("1", "b", 3, 3), ("2", "b", 1, 3), ("2", "a", 1, 0)]
    assert runs == [*once, *(once[at] for at in (1, 0, 3, 2))]
    assert [(one.repeat, one.status) for one in result.runs] == [(1, 0)] * 4 + [(2, 0)] * 4
    calls = result.comparisons[1]
    assert calls == Comparison("calls", 0.5, 3.0, more=2, fewer=0, equal=0, p=0.5)


def test_runs_of_an_experiment_that_fails_are_kept_and_never_written_over(
    trial: Trial, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial.task(a=[1], b=[])
    into = tmp_path / "result.json"
    assert trial.run("--into", str(into)) == 1
    assert "the agent made no turn at b: does it use http://b" in capsys.readouterr().err
    result = codec.decode(into.read_bytes(), type=ResultFile)
    assert [(one.side, one.turns) for one in result.runs] == [("a", 1), ("b", 0)]
    assert result.comparisons == []

    assert trial.run("--into", str(into)) != 0
    assert "exists already" in capsys.readouterr().err
    assert codec.decode(into.read_bytes(), type=ResultFile) == result
