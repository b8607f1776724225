"""Writing settings keeps the user's own, and a copy of the old file."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from services.cli.connect.client import ClientSettings
from services.cli.connect.settings_file import UnreadableFile, text_of, write


def as_json(path: Path, values: dict[str, Any], **more: Any) -> ClientSettings:
    return ClientSettings(str(path), "json", values, **more)


def as_toml(path: Path, values: dict[str, Any], **more: Any) -> ClientSettings:
    return ClientSettings(str(path), "toml", values, **more)


def backups(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.*.bak"))


def test_only_its_owner_can_read_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "settings.json"
    assert write(as_json(path, {"env": {"A": "ü"}})) == [f"{path}: written"]
    assert path.read_text() == '{\n  "env": {\n    "A": "ü"\n  }\n}\n'
    assert path.stat().st_mode & 0o777 == 0o600


def test_other_values_stay_and_a_copy_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    before = '{"env": {"A": "old", "B": "2", "X_TOKEN": "secret"}, "list": [1], "A": null}'
    path.write_text(before)
    path.chmod(0o644)
    lines = write(as_json(path, {"env": {"A": "new", "X_TOKEN": "other", "MAX_TOKENS": "7"}}))
    assert json.loads(path.read_text()) == {
        "env": {"A": "new", "B": "2", "X_TOKEN": "other", "MAX_TOKENS": "7"},
        "list": [1],
        "A": None,
    }
    [backup] = backups(path)
    copied = f"{path}: written; the copy of the old file is {backup}"
    assert lines == [copied, '  env.A: was "old"', "  env.X_TOKEN"]
    assert backup.read_text() == before
    assert path.stat().st_mode & 0o777 == backup.stat().st_mode & 0o777 == 0o600, (
        "there may be a key in them"
    )


def test_unchanged_file_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    settings = as_json(path, {"a": {"b": 1}})
    write(settings)
    at = path.stat().st_mtime_ns
    assert write(settings) == [f"{path}: unchanged"]
    assert path.stat().st_mtime_ns == at
    assert backups(path) == []


def test_no_copy_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for number in range(4):
        write(as_json(path, {"a": number}))
    assert [
        json.loads(copy.read_text())["a"] for copy in sorted(backups(path), key=os.path.getctime)
    ] == [0, 1, 2]


def test_choices_of_the_user_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"model": "mine", "agents": {"defaults": {"x": 1}}}')
    write(
        as_json(
            path,
            {},
            if_absent={"model": "ours", "small": "s", "agents": {"defaults": {"model": "m"}}},
        )
    )
    assert json.loads(path.read_text()) == {
        "model": "mine",
        "agents": {"defaults": {"x": 1, "model": "m"}},
        "small": "s",
    }


def test_comments_and_order_of_toml_stay(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        '# first\nmodel = "a" # why\n\n[analytics]\nenabled = false\n\n[p.other]\nx = 1 # keep\n'
    )
    lines = write(as_toml(path, {"model": "b", "web": "off", "p": {"ours": {"y": True}}}))
    text = path.read_text()
    assert tomllib.loads(text) == {
        "model": "b",
        "web": "off",
        "analytics": {"enabled": False},
        "p": {"other": {"x": 1}, "ours": {"y": True}},
    }
    assert text.startswith('# first\nmodel = "b" # why\n')
    assert "x = 1 # keep" in text
    assert lines[1:] == ['  model: was "a"']


def test_values_of_other_options_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('file = "ours"\nother = "theirs"\n[p.t]\nurl = "u"\nkeep = 1\n')
    write(
        as_toml(
            path,
            {},
            remove={
                "file": "ours",
                "other": "ours",
                "p": {"t": {"url": None}},
                "absent": {"a": None},
            },
        )
    )
    assert tomllib.loads(path.read_text()) == {"other": "theirs", "p": {"t": {"keep": 1}}}


@pytest.mark.parametrize(
    ("kind", "content", "why"),
    [
        ("json", '{"a": 1, // why\n}', "comments"),
        ("json", "[1]", "no settings"),
        ("json", "{", "not plain JSON"),
        ("toml", "a = ", "not TOML"),
    ],
)
def test_file_that_cannot_be_parsed_is_unchanged(
    tmp_path: Path, kind: Any, content: str, why: str
) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(UnreadableFile, match=why):
        write(ClientSettings(str(path), kind, {"a": 1}))
    assert path.read_text() == content
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_symbolic_link_stays(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    real = tmp_path / "dotfiles" / "s.json"
    real.write_text("{}")
    link = tmp_path / "s.json"
    link.symlink_to(real)
    write(as_json(link, {"a": 1}))
    assert link.is_symlink()
    assert json.loads(real.read_text()) == {"a": 1}
    assert len(backups(real)) == 1


def test_whole_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    path.write_text('{"models": [1], "etag": "x"}')
    write(as_json(path, {"models": [2]}, whole=True))
    assert json.loads(path.read_text()) == {"models": [2]}


def test_text_of_settings_is_a_complete_file(tmp_path: Path) -> None:
    values = {"a": "x", "t": {"b": 1}}
    assert tomllib.loads(text_of(as_toml(tmp_path, values, if_absent={"c": 2}))) == {
        **values,
        "c": 2,
    }
    assert json.loads(text_of(as_json(tmp_path, values, if_absent={"a": "y"}))) == values
