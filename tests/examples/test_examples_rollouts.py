"""Trains for two steps as examples/rollouts does, with a stand-in for the agent."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.engines import with_torch
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack
from tests.kit.waiting import LIMIT_S

pytestmark = [pytest.mark.slow, with_torch]
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "rollouts"
AGENT = Path(__file__).parent / "agent.py"
STEP = re.compile(
    r"reward (\S+), (\d+) rollouts, (\d+) samples, error (\S+), \d+ agents meanwhile\n"
)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """The toy with a short warm-up."""
    short = f"import sys; sys.path.insert(0, {str(EXAMPLE)!r}); import toy, pathlib; "
    build = "toy.build(pathlib.Path('toy'), steps=30)"
    subprocess.run([sys.executable, "-c", short + build], cwd=tmp_path, check=True)
    for folder in ("weights", "nats", "stack"):
        (tmp_path / folder).mkdir()
    return tmp_path / "toy"


@pytest.fixture
def server(nats_binary: str, toy: Path) -> Iterator[Stack]:
    nats = NatsServer(nats_binary, str(toy.parent / "nats"))
    nats.start()
    stack = Stack(nats, toy, toy.parent / "stack")
    named = {"served_model_name": "toy"}
    worker = {**named, "engine": "transformers", "weights_dir": toy.parent / "weights"}
    try:
        yield stack.start_all(parser=named, preprocessor=named, worker=worker)
    finally:
        stack.stop()
        nats.kill()


def test_log_probabilities_are_those_of_each_version(server: Stack, toy: Path) -> None:
    agent = toy.parent / "agent"
    agent.write_text(f'#!/bin/sh\nexec {sys.executable} {AGENT} "$@"\n')
    agent.chmod(0o755)
    command: list[str | Path] = [
        sys.executable,
        EXAMPLE / "train.py",
        toy,
        toy.parent / "weights",
        server.url,
        agent,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        steps = [STEP.fullmatch(process.stdout.readline()) for _ in range(3)]
    finally:
        process.kill()
        process.wait(LIMIT_S)
    assert all(steps)
    assert max(float(step[4]) for step in steps if step) < 1e-3
    assert min(int(step[3]) for step in steps if step) >= 36
