"""The simulation: the same seed plays the same turns in every interpreter, and marks of rare
branches are unique."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from simulation.__main__ import main
from simulation.reach import marks
from tests.kit.waiting import eventually

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 300.0


def played(*flags: str, hash_seed: int = 0) -> str:
    """What `python -m simulation` prints; in a process of its own, because it replaces the
    interpreter's clocks."""
    run = subprocess.run(
        [sys.executable, "-m", "simulation", *flags],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def trace_of(output: str) -> str:
    found = re.search(r"trace ([0-9a-f]{32})", output)
    assert found is not None, output
    return found[1]


@pytest.mark.slow
def test_same_seeds_have_the_same_traces_in_every_interpreter() -> None:
    """With two jobs, other seeds come before a seed in its interpreter."""
    traces = [
        trace_of(played("--turns", "200", "--jobs", str(jobs), hash_seed=jobs)) for jobs in (1, 2)
    ]
    assert traces[0] == traces[1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [57, 96, 125])
def test_seeds_that_failed_once_pass(seed: int) -> None:
    """57: a second SIGTERM; 96: a keep-alive at a rounded time; 125: a signal before its
    handler."""
    played("--seed", str(seed))


def test_names_of_rare_branches_are_unique() -> None:
    assert not [name for name, count in Counter(marks()).items() if count > 1]


def test_rare_branches_do_not_follow_the_end_of_a_block() -> None:
    ended = re.compile(
        r"^([ ]*)(?:return|raise|continue|break)\b.*\n(?:\1#.*\n)*?\1# rare: .*", re.MULTILINE
    )
    files = (ROOT / "services").rglob("*.py")
    assert not [
        f"{file}: {found[0]}" for file in files for found in ended.finditer(file.read_text())
    ]


@pytest.mark.parametrize(
    "flags", [["--jobs", "0"], ["--turns", "-1"], ["--trace"], ["--seed", "x"]]
)
def test_a_wrong_flag_is_named(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", *flags])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert flags[0] in capsys.readouterr().err


@pytest.mark.slow
def test_a_reader_of_the_trace_may_leave_early() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "simulation", "--seed", "17", "--trace"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline()
        run.stdout.close()
        assert run.stderr.read() == ""
        assert run.wait(LIMIT_S) != 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_an_interrupted_run_ends_with_all_its_processes(number: signal.Signals) -> None:
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "simulation", "--turns", "1000000", "--jobs", "2"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        await eventually(lambda: len(_players(run.pid)) == 2, LIMIT_S)
        players = _players(run.pid)
        run.send_signal(number)
        output, _ = await asyncio.wait_for(run.communicate(), LIMIT_S)
    finally:
        if run.returncode is None:
            run.kill()
    await eventually(lambda: not any(map(_plays, players)), LIMIT_S)
    if number != signal.SIGKILL:
        assert run.returncode == 130
        assert b"Traceback" not in output


def _players(parent: int) -> list[int]:
    """The processes of a pool that have started: each has a thread that waits for the end of
    `parent`."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [
        pid
        for pid in map(int, children)
        if _plays(pid) and len(os.listdir(f"/proc/{pid}/task")) > 1
    ]


def _plays(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
