"""The command line in a process of its own, and packages that add to it."""

import sys
from pathlib import Path

import pytest

from tests.kit.waiting import eventually

MAIN = (sys.executable, "-m", "services.cli.main")


def install(
    directory: Path, patch: pytest.MonkeyPatch, group: str, entry_points: str, module: str
) -> None:
    """Writes a package as pip would install it, with a module `added`, where it is found."""
    (directory / "added.py").write_text(module)
    info = directory / "added-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry_points}\n")
    patch.syspath_prepend(directory)
    patch.delitem(sys.modules, "added", raising=False)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def until_gone(*pids: int) -> None:
    """Polls, since only a parent can wait for a process."""
    await eventually(lambda: all(map(gone, pids)))
