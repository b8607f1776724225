"""The command line in a process of its own, and packages that add to it."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

from tests.kit.waiting import eventually

MAIN = (sys.executable, "-m", "services.cli.main")


async def turnwire(*argv: str, env: dict[str, str] | None = None) -> tuple[int | None, str]:
    """The status and the output of a command."""
    process = await asyncio.create_subprocess_exec(
        *MAIN, *argv, env=env, stdout=PIPE, stderr=STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


def install(directory: Path, group: str, entry_points: str, module: str = "") -> dict[str, str]:
    """Writes a package as pip would install it, with a module `added`; returns an environment in
    which it is found."""
    (directory / "added.py").write_text(module)
    info = directory / "added-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry_points}\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), *filter(None, sys.path)])}


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def until_gone(*pids: int) -> None:
    """Polls, since only a parent can wait for a process."""
    await eventually(lambda: all(map(gone, pids)))
