"""Follows README.md and the pages of docs/ as a new user does: command by command, in a fresh copy
of the repository."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.commands import read_commands
from tests.docs.reader import PAGES, ROOT, SERVES, Reader, copy_repository

ALL = [command for page in PAGES for command in read_commands(ROOT / page, page)]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of the repository")
    (tmp_path / "clone").mkdir()
    copy_repository(tmp_path / "clone")
    made = Reader(tmp_path)
    yield made
    if made.server is not None:
        made.server.kill()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_command_works_as_written(reader: Reader) -> None:
    typed = 0
    for command in ALL:
        serves = SERVES.match(command.text)
        if command.skipped or (reader.server and serves):
            continue
        reader.type(command)
        typed += 1
    assert typed > 20
    assert reader.server is not None
    reader.server.interrupt()
