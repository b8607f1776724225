"""Files that change while the process runs."""

import asyncio
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from services.frontend.http.file_watch import FileWatch
from tests.kit.frontend import log_into
from tests.kit.waiting import LIMIT_S


class Watched:
    """A file, and what was read of it at each reload: its content, or None if it was missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[str | None] = []
        self.lines: list[MutableMapping[str, Any]] = []
        self.reloaded = asyncio.Event()
        self.watch = FileWatch([str(path)], self.reload, log_into(self.lines), interval_s=0.01)

    def reload(self) -> None:
        content = self.path.read_text() if self.path.exists() else None
        self.calls.append(content)
        self.reloaded.set()
        if content == "bad":
            raise ValueError("no keys")
        if content is None:
            raise FileNotFoundError(self.path)

    def write(self, content: str) -> None:
        self.path.write_text(content)
        self.watch.check()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    path = tmp_path / "keys"
    path.write_text("one")
    return Watched(path)


def test_each_change_is_noticed_once(watched: Watched, tmp_path: Path) -> None:
    """Also one that cannot be read."""
    watched.watch.check()
    watched.write("bad")
    watched.watch.check()
    fresh = tmp_path / "fresh"
    fresh.write_text("new")
    os.replace(fresh, watched.path)
    watched.watch.check()
    watched.watch.check()
    assert watched.calls == ["bad", "new"]
    events = [(line["event"], line.get("error")) for line in watched.lines]
    assert events == [("file.not_reloaded", "no keys"), ("file.reloaded", None)]


def test_changed_link_target_is_noticed(tmp_path: Path) -> None:
    """How Kubernetes changes a mounted secret."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(name)
    link = tmp_path / "data"
    link.symlink_to("old")
    watched = Watched(link / "keys")
    (tmp_path / "next").symlink_to("new")
    os.replace(tmp_path / "next", link)
    watched.watch.check()
    assert watched.calls == ["new"]


async def test_watch_polls_while_the_application_runs(watched: Watched) -> None:
    context = watched.watch.context(None)
    await anext(context)
    watched.path.write_text("other")
    async with asyncio.timeout(LIMIT_S):
        await watched.reloaded.wait()
    async for _ in context:
        raise AssertionError
