"""Files appear whole, and only their owner reads them."""

import stat
from pathlib import Path

import pytest

from services.cli.common import create_file, replace_file


def test_replaced_file_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    for data in (b"old", b"new"):
        replace_file(path, data)
        assert path.read_bytes() == data
    assert [one.name for one in tmp_path.iterdir()] == ["ready.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_new_file_replaces_no_file(tmp_path: Path) -> None:
    create_file(tmp_path / "a", b"first")
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
