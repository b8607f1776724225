"""Commands and engines by name: another package's, and all of this one's in a clone that was never
installed."""

import asyncio
import os
import shutil
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import msgspec

from schemas import subjects
from schemas.control import Heartbeat
from services.cli.registry import BUILT_IN, GROUP
from services.worker.engines import registry as engines
from tests.cli.running import MAIN, install, turnwire
from tests.kit.nats import NatsServer
from tests.kit.processes import MakeProcess

REPOSITORY = Path(__file__).parents[2]
COUNT = '''
from services.cli.observer import observing
from services.cli.registry import Command
from services.cli.signals import run
from services.runtime.config import BusConfig
from schemas import subjects


def count(sources, stage, /, *, fewest: int = 1):
    """Counts the heartbeats on the bus.

    Args:
        stage: Which processes.
        fewest: How many to wait for.
    """
    return run(_count(sources.load(BusConfig).config, stage, fewest))


async def _count(config, stage, fewest):
    import asyncio

    beats = asyncio.Queue()
    async with observing(config, "count") as bus:
        await bus.subscribe(subjects.heartbeats(), beats.put_nowait)
        print("listening", flush=True)
        for _ in range(fewest):
            await beats.get()
    print(f"{fewest} heartbeats of {stage}")
    return 0


COMMAND = Command(count, [BusConfig])
'''


async def test_another_package_adds_a_command(
    nats: NatsServer, make_process: MakeProcess, tmp_path: Path
) -> None:
    env = install(tmp_path, GROUP, "count = added:COMMAND", COUNT)
    _, overview = await turnwire("--help", env=env)
    assert "  count         Counts the heartbeats on the bus.\n" in overview
    _, text = await turnwire("count", "--help", env=env)
    assert all(flag in text for flag in ("--fewest", "--nats-url", "--connect-timeout-s"))

    sender = await make_process("parser", "p1")
    command = [*MAIN, "count", "parser", "--nats-url", nats.url, "--fewest", "2"]
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=PIPE, stderr=STDOUT)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"listening\n"
    while process.returncode is None:
        sender.publish(subjects.heartbeat("parser", "p1"), Heartbeat("parser", "p1"))
        await asyncio.sleep(0.02)
    assert (process.returncode, await process.stdout.read()) == (0, b"2 heartbeats of parser\n")


async def test_command_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    messages = {
        "gone": "cannot be imported: No module named 'nowhere'",
        "none": "cannot be imported: module 'added' has no attribute 'NONE'",
        "bare": "added:count is not a services.cli.registry.Command",
    }
    entries = "gone = nowhere:COMMAND\nnone = added:NONE\nbare = added:count"
    env = install(tmp_path, GROUP, entries, COUNT)
    _, overview = await turnwire("--help", env=env)
    for name, message in messages.items():
        assert await turnwire(name, env=env) == (1, f"turnwire {name}: {message}\n")
        assert message in overview


async def test_no_package_replaces_a_command(tmp_path: Path) -> None:
    env = install(tmp_path, GROUP, "tap = added:COMMAND", COUNT)
    assert "--fewest" not in (await turnwire("tap", "--help", env=env))[1]


def test_entry_points_of_this_package_are_in_the_tables() -> None:
    project = msgspec.toml.decode((REPOSITORY / "pyproject.toml").read_bytes())["project"]
    declared = project["entry-points"]
    assert declared[GROUP].items() <= {name: path for name, (path, _) in BUILT_IN.items()}.items()
    assert declared[engines.GROUP] == engines.BUILT_IN
    tools = {name for name, (path, _) in BUILT_IN.items() if path.startswith("turnwire_tools.")}
    assert declared[GROUP].keys() == tools


NOT_INSTALLED = """
import importlib.metadata

importlib.metadata.entry_points = lambda **_: importlib.metadata.EntryPoints()
"""
CHECK = """
import sys
from services.cli.registry import load_command
from services.worker.engines.registry import load_engine

print([load_command(name) is not None for name in ("up", "tap", "demo-model", "connect")])
print(sys.modules[load_engine("script").__module__].__file__)
"""


async def test_clone_that_was_never_installed_has_every_command_and_the_script_engine(
    tmp_path: Path, demo_dir: Path
) -> None:
    for package in ("schemas", "services", "turnwire_tools"):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=unwanted)
    (tmp_path / "sitecustomize.py").write_text(NOT_INSTALLED)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}

    async def run(*argv: str) -> tuple[int | None, list[str]]:
        process = await asyncio.create_subprocess_exec(
            *argv, env=env, cwd=tmp_path, stdout=PIPE, stderr=STDOUT
        )
        output, _ = await process.communicate()
        return process.returncode, output.decode().splitlines()

    status, lines = await run(MAIN[0], "-c", CHECK)
    assert status == 0
    assert lines == [str([True] * 4), f"{tmp_path}/turnwire_tools/script/engine.py"]
    status, lines = await run(*MAIN, "tap", "--help")
    assert (status, any("turnwire tap" in line for line in lines)) == (0, True)
    worker = ("serve", "worker", "--engine", "script", "--model", str(demo_dir))
    bus = ("--nats-url", "nats://127.0.0.1:1", "--connect-timeout-s", "0.2")
    status, lines = await run(*MAIN, *worker, *bus)
    assert status == 1
    assert lines[-1] == "turnwire serve worker: no NATS server at nats://127.0.0.1:1"
