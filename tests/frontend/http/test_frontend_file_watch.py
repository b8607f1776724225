"""Files that change while the process runs."""

import asyncio
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from services.frontend.http.file_watch import FileWatch
from tests.kit.frontend import log_into


def test_each_change_is_noticed_once(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    calls: list[str] = []
    lines: list[MutableMapping[str, Any]] = []
    path.write_text("one")
    watch = FileWatch([str(path)], lambda: calls.append(path.read_text()), log_into(lines))
    watch.check()
    path.write_text("two, longer")
    watch.check()
    watch.check()
    fresh = tmp_path / "fresh"
    fresh.write_text("three, long.")
    os.replace(fresh, path)
    watch.check()
    assert calls == ["two, longer", "three, long."]
    assert [line["event"] for line in lines] == ["file.reloaded"] * 2


def test_changed_link_target_is_noticed(tmp_path: Path) -> None:
    """How Kubernetes changes a mounted secret."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(name)
    link = tmp_path / "data"
    link.symlink_to("old")
    calls: list[str] = []
    watched = link / "keys"
    watch = FileWatch([str(watched)], lambda: calls.append(watched.read_text()), log_into([]))
    (tmp_path / "next").symlink_to("new")
    os.replace(tmp_path / "next", link)
    watch.check()
    assert calls == ["new"]


def test_failed_reload_is_logged_and_tried_at_the_next_change(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    lines: list[MutableMapping[str, Any]] = []
    path.write_text("one")
    calls: list[str] = []

    def reload() -> None:
        content = path.read_text()
        calls.append(content)
        if content == "bad":
            raise ValueError("no keys")

    watch = FileWatch([str(path)], reload, log_into(lines))
    for content in ("bad", "good"):
        path.write_text(content)
        watch.check()
        watch.check()
    path.unlink()
    watch.check()
    watch.check()
    assert calls == ["bad", "good"]
    assert [line["event"] for line in lines] == [
        "file.not_reloaded",
        "file.reloaded",
        "file.not_reloaded",
    ]
    assert lines[0]["error"] == "no keys"


def test_file_that_is_replaced_in_two_steps_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one")
    calls: list[bool] = []
    lines: list[MutableMapping[str, Any]] = []
    watch = FileWatch([str(path)], lambda: calls.append(path.exists()), log_into(lines))
    path.write_text("")
    watch.check()
    path.write_text("other")
    watch.check()
    path.unlink()
    watch.check()
    assert calls == [True]
    watch.check()
    watch.check()
    assert calls == [True, False]


async def test_watch_polls_while_the_application_runs(tmp_path: Path) -> None:
    path, seen = tmp_path / "keys", asyncio.Event()
    path.write_text("one")
    watch = FileWatch([str(path)], seen.set, log_into([]), interval_s=0.01)
    context = watch.context(None)
    await anext(context)
    path.write_text("other")
    async with asyncio.timeout(60):
        await seen.wait()
    async for _ in context:
        raise AssertionError
