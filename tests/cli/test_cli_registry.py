"""Commands and engines by name: another package's, and all of this one's in a clone that was never
installed."""

import asyncio
import os
import shutil
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import msgspec
import pytest

from schemas import subjects
from schemas.control import Heartbeat
from services.cli.registry import BUILT_IN, GROUP
from services.worker.engines import registry as engines
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


def install(directory: Path, module: str, entry_points: str) -> dict[str, str]:
    """A package as pip would install it; returns an environment in which it is found."""
    (directory / "count_command.py").write_text(module)
    info = directory / "count_command-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: count-command\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entry_points}\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), *filter(None, sys.path)])}


async def turnwire(*argv: str, env: dict[str, str]) -> tuple[int | None, str]:
    command = [sys.executable, "-m", "services.cli.main", *argv]
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_another_package_adds_a_command(
    nats: NatsServer, make_process: MakeProcess, tmp_path: Path
) -> None:
    env = install(tmp_path, COUNT, "count = count_command:COMMAND")
    assert (
        "  count         Counts the heartbeats on the bus.\n"
        in (await turnwire("--help", env=env))[1]
    )
    _, text = await turnwire("count", "--help", env=env)
    assert all(flag in text for flag in ("--fewest", "--nats-url", "--connect-timeout-s"))

    sender = await make_process("parser", "p1")
    command = [
        sys.executable,
        "-m",
        "services.cli.main",
        "count",
        "parser",
        "--nats-url",
        nats.url,
        "--fewest",
        "2",
    ]
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=PIPE, stderr=STDOUT)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"listening\n"
    while process.returncode is None:
        sender.publish(subjects.heartbeat("parser", "p1"), Heartbeat("parser", "p1"))
        await asyncio.sleep(0.02)
    assert (process.returncode, await process.stdout.read()) == (0, b"2 heartbeats of parser\n")


@pytest.mark.parametrize(
    ("entry_point", "message"),
    [
        ("count = nowhere:COMMAND", "cannot be imported: No module named 'nowhere'"),
        (
            "count = count_command:NONE",
            "cannot be imported: module 'count_command' has no attribute 'NONE'",
        ),
        (
            "count = count_command:count",
            "count_command:count is not a services.cli.registry.Command",
        ),
    ],
)
async def test_command_that_cannot_be_used_is_one_line(
    entry_point: str, message: str, tmp_path: Path
) -> None:
    env = install(tmp_path, COUNT, entry_point)
    assert await turnwire("count", env=env) == (1, f"turnwire count: {message}\n")
    assert message in (await turnwire("--help", env=env))[1]


async def test_no_package_replaces_a_command(tmp_path: Path) -> None:
    env = install(tmp_path, COUNT, "tap = count_command:COMMAND")
    assert "--fewest" not in (await turnwire("tap", "--help", env=env))[1]


def test_entry_points_of_this_package_are_in_the_tables() -> None:
    declared = msgspec.toml.decode((REPOSITORY / "pyproject.toml").read_bytes())["project"][
        "entry-points"
    ]
    assert declared[GROUP].items() <= {name: path for name, (path, _) in BUILT_IN.items()}.items()
    assert declared[engines.GROUP] == engines.BUILT_IN
    tools = {name for name, (path, _) in BUILT_IN.items() if path.startswith("turnwire_tools.")}
    assert declared[GROUP].keys() == tools


NOT_INSTALLED = """
import importlib.metadata

importlib.metadata.entry_points = lambda **_: importlib.metadata.EntryPoints()
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a clone that was never installed."""
    directory = tmp_path_factory.mktemp("clone")
    for package in ("schemas", "services", "turnwire_tools"):
        shutil.copytree(
            REPOSITORY / package, directory / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    (directory / "sitecustomize.py").write_text(NOT_INSTALLED)
    return {**os.environ, "PYTHONPATH": str(directory), "PWD": str(directory)}


async def run(clone: dict[str, str], *argv: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *argv, env=clone, cwd=clone["PWD"], stdout=PIPE, stderr=STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest.mark.parametrize("command", ["up", "tap", "demo-model", "connect"])
async def test_clone_has_every_command(command: str, clone: dict[str, str]) -> None:
    status, text = await run(clone, "-m", "services.cli.main", command, "--help")
    assert (status, f"turnwire {command}" in text) == (0, True)


async def test_clone_has_the_script_engine(clone: dict[str, str], demo_dir: Path) -> None:
    find = "from services.worker.engines.registry import load_engine; import sys; e = load_engine('script'); print(sys.modules[e.__module__].__file__)"
    assert await run(clone, "-c", find) == (0, f"{clone['PWD']}/turnwire_tools/script/engine.py\n")
    worker = [
        "-m",
        "services.cli.main",
        "serve",
        "worker",
        "--engine",
        "script",
        "--model",
        str(demo_dir),
        "--connect-timeout-s",
        "0.2",
    ]
    status, text = await run(clone, *worker, "--nats-url", "nats://127.0.0.1:1")
    assert (status, text.splitlines()[-1]) == (
        1,
        "turnwire serve worker: no NATS server at nats://127.0.0.1:1",
    )
