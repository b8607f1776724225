"""CPU and memory of real processes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import cpu

BURN = "import time\nwhile time.process_time() < {}: pass\nprint('burnt', flush=True)\ninput()"


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[str]]:
    """Uses 0.2 s of CPU time, prints a line, and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", BURN.format(0.2)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_what_another_process_has_used(burner: subprocess.Popen[str]) -> None:
    meter = cpu.Meter({"burner": burner.pid})
    meter.start()
    before = cpu.cpu_seconds(burner.pid)
    assert burner.stdout is not None
    assert burner.stdout.readline() == "burnt\n"
    cost = meter.stop()
    assert 0.2 <= cpu.cpu_seconds(burner.pid) < 1.0
    assert cost.processes["burner"] >= 0.2 - before - 0.01
    assert cost.client < cost.processes["burner"]


def test_memory_of_this_process() -> None:
    held = cpu.memory(os.getpid())
    assert 5 < held.rss <= held.peak


def test_own_cpu_time_in_the_fallback_and_the_clock_agree() -> None:
    assert cpu.cpu_seconds(os.getpid()) == pytest.approx(time.process_time(), abs=0.05)


def test_a_process_that_is_gone() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for ask in (cpu.cpu_seconds, cpu.memory, cpu.stages):
        with pytest.raises(ProcessLookupError):
            ask(gone.pid)


def test_a_process_that_ends_meanwhile_is_named(burner: subprocess.Popen[str]) -> None:
    meter = cpu.Meter({"burner": burner.pid})
    meter.start()
    burner.kill()
    burner.wait()
    with pytest.raises(ProcessLookupError, match="burner"):
        meter.stop()


def test_stages_are_found_among_grandchildren() -> None:
    """A process tree such as that of `turnwire up`: a leader whose children are the stages."""
    child = "import sys; sys.stdin.read()"
    leader = (
        "import subprocess, sys\n"
        f"run = lambda *words: subprocess.Popen([sys.executable, '-c', {child!r}, *words], stdin=subprocess.PIPE)\n"
        "kept = [run('services.parser'), run('services.parser'), run('services.frontend'), run('other')]\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    up = subprocess.Popen(
        [sys.executable, "-c", leader], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert up.stdout is not None
    assert up.stdout.readline() == "ready\n"
    found = cpu.stages(up.pid)
    up.communicate()
    other = Path(sys.executable).name
    assert set(found) == {"frontend", "parser", "parser-2", "up", other}  # all of them
    assert found["up"] == up.pid
    assert [cpu.of_stage(name) for name in ("parser-2", "nats")] == ["parser", "nats"]


def test_pairs() -> None:
    assert cpu.parse_pids(["worker=12", "a-2=3"]) == {"worker": 12, "a-2": 3}
    for pair in ("worker", "=1", "worker=x"):
        with pytest.raises(ValueError, match="name=pid"):
            cpu.parse_pids([pair])
