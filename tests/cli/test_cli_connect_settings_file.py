"""`turnwire connect --write` keeps the user's own settings and a copy of the old file, `--undo`
restores every byte, and no file with the key is readable for others at any time."""

import contextlib
import itertools
import os
import shutil
import stat
import tomllib
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from services.cli.common import CommandError
from services.cli.connect.client import ClientSettings, FileKind, Target, client_names, load_client
from services.cli.connect.command import ConnectFlags, undo_all
from services.cli.connect.server import ServedModel
from services.cli.connect.settings_file import undo, write
from services.cli.main import main
from tests.kit.every import Cases

KEY = "sk-the-secret-key"
MODEL = ServedModel("acme/coder", 131_072, capabilities={"thinking": {"supported": True}})


def plan_of(name: str, folder: Path, default: bool) -> list[ClientSettings]:
    """The files of a client; `default`: Turnwire's model becomes its default, at another URL."""
    target = Target(
        "http://h:2" if default else "http://h:1",
        MODEL,
        key=KEY,
        folder=str(folder),
        env={"HOME": str(folder)},
        catalogue=[{"slug": MODEL.id}],
        catalogue_file=True,
        default=default,
    )
    return load_client(name).plan(target).files


CLIENTS = [name for name in client_names() if plan_of(name, Path("/x"), False)]


def settings(path: Path, values: dict[str, Any], kind: FileKind = "json") -> Any:
    return ClientSettings(str(path), kind, values)


def private(path: Path) -> bool:
    return stat.S_IMODE(path.stat().st_mode) == 0o600


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All files and folders, with modes and content."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }


def with_key(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if KEY.encode() in path.read_bytes()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "settings"


def test_new_file_is_private_and_is_not_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "settings.json"
    ours = settings(path, {"env": {"A": "ü"}})
    assert write(ours) == [f"{path}: written"]
    assert path.read_text() == '{\n  "env": {\n    "A": "ü"\n  }\n}\n'
    assert private(path)
    at = path.stat().st_mtime_ns
    assert write(ours) == [f"{path}: unchanged"]
    assert path.stat().st_mtime_ns == at
    assert list(path.parent.glob("*.bak")) == []


def test_changed_values_are_listed_without_secrets_and_a_private_copy_is_kept(path: Path) -> None:
    before = '{"env": {"A": "old", "X_TOKEN": "secret"}}'
    path.write_text(before)
    path.chmod(0o644)
    lines = write(settings(path, {"env": {"A": "new", "X_TOKEN": "other", "MAX_TOKENS": "7"}}))
    (backup,) = path.parent.glob("*.bak")
    copied = f"{path}: written; the copy of the old file is {backup}"
    assert lines == [copied, '  env.A: was "old"', "  env.X_TOKEN"]
    assert backup.read_text() == before
    assert private(path)
    assert private(backup)


def test_comments_and_order_of_toml_stay(path: Path) -> None:
    path.write_text(
        '# first\nmodel = "a" # why\n\n[analytics]\nenabled = false\n\n[p.other]\nx = 1 # keep\n'
    )
    ours = {"model": "b", "web": "off", "p": {"ours": {"y": True}}}
    assert write(settings(path, ours, "toml"))[1:] == ['  model: was "a"']
    text = path.read_text()
    assert tomllib.loads(text) == {
        "model": "b",
        "web": "off",
        "analytics": {"enabled": False},
        "p": {"other": {"x": 1}, "ours": {"y": True}},
    }
    assert text.startswith('# first\nmodel = "b" # why\n')
    assert "x = 1 # keep" in text


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("json", b'{"a": 1, // why\n}', "not plain JSON, perhaps because of comments"),
        ("toml", b"a = ", "not TOML"),
        ("yaml", b"model: x # why\n", "it has comments"),
    ],
)
def test_file_that_cannot_be_written_back_is_refused(
    kind: FileKind, text: bytes, why: str, path: Path
) -> None:
    ours = settings(path, {"a": {"z": 1}}, kind)
    path.write_bytes(text)
    with pytest.raises(CommandError, match=why) as refused:
        write(ours)
    assert str(path) in str(refused.value)
    assert [(one.name, one.read_bytes()) for one in path.parent.iterdir()] == [("settings", text)]


def test_copy_that_the_user_made_of_the_key_stays_private(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0o644)
    ours = settings(path, {"p": {"turnwire": {"key": KEY}}})
    write(ours)
    path.write_text(path.read_text().replace('"turnwire"', '"mine"'))
    undo(ours)
    assert KEY in path.read_text()
    assert private(path)


def test_undo_needs_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("connect", "codex", "--dir", str(tmp_path))
    assert main([*arguments, "--undo"]) == 1
    assert "nothing to undo" in capsys.readouterr().err
    for ours in plan_of("codex", tmp_path, True):
        write(ours)
    assert main([*arguments, "--undo"]) == 0
    removed = f"{tmp_path}/turnwire-models.json: removed\n{tmp_path}/config.toml: removed\n"
    assert capsys.readouterr().out == removed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["s.json", "to/s.json"])
def test_link_into_a_folder_of_another_user_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    link = name.partition("/")[0]
    (ours / link).symlink_to(theirs / link)
    with pytest.raises(CommandError, match="in a folder of another user; it is unchanged"):
        write(settings(ours / name, {"key": KEY}))
    assert tree(theirs) == {}
    own = ours / "own.json"  # without a link it may be anybody's folder, such as on a volume
    write(settings(own, {"key": KEY}))
    assert KEY in own.read_text()


@pytest.mark.parametrize("swapped", ["ours/a", "ours/a/b/s.json"])
def test_link_that_appears_after_the_check_is_not_followed(swapped: str, tmp_path: Path) -> None:
    """Another user replaces a folder on the way, or the file, between the check of the path and its
    use."""
    for owner in ("ours", "theirs"):
        (tmp_path / owner / "a" / "b").mkdir(parents=True)
        (tmp_path / owner / "a" / "b" / "s.json").write_text("{}")
    before = tree(tmp_path / "theirs")
    link, resolve = tmp_path / swapped, os.path.realpath

    def resolve_then_swap(name: Any, **options: Any) -> Any:
        real = resolve(name, **options)
        if not link.is_symlink():
            shutil.move(link, tmp_path / "moved")
            link.symlink_to(tmp_path / swapped.replace("ours", "theirs"))
        return real

    with mock.patch("os.path.realpath", resolve_then_swap), pytest.raises(OSError):
        write(settings(tmp_path / "ours" / "a" / "b" / "s.json", {"key": KEY}))
    assert tree(tmp_path / "theirs") == before


class Killed(BaseException):
    """The process ends here."""


def test_killed_write_is_undone(tmp_path: Path) -> None:
    """A process that writes again is killed at each of its system calls in turn."""
    calls = {name: getattr(os, name) for name in ("open", "rename", "unlink", "mkdir", "fchmod")}
    left = 0

    def call(name: str, *arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return calls[name](*arguments, **options)

    for number in itertools.count():
        path = tmp_path / f"{number}.json"
        path.write_text('{"key": "mine"}')
        write(settings(path, {"key": KEY}))
        left = number
        with contextlib.ExitStack() as patched:
            for name in calls:
                patched.enter_context(mock.patch.object(os, name, partial(call, name)))
            try:
                write(settings(path, {"key": KEY + "new"}))
                break
            except Killed:
                pass
        undo(settings(path, {}))
        assert path.read_text() == '{"key": "mine"}', number
    assert number > 8


TEXTS: dict[FileKind, str] = {
    "json": '{"providers": {"turnwire": {"mine": null}},  "model": "x"}\n\n',
    "toml": "# the user's\nmodel = 'x' # why\n\n[env]\nA = 1\n# end",
    "yaml": "model: x\nproviders:\n  turnwire: {mine: [1, null]}\n",
    "env": "export A=b",
}
"""Files of users."""


def undone(name: str, folder: Path) -> list[str]:
    return undo_all(load_client(name), ConnectFlags(dir=str(folder)), {"HOME": str(folder)})


def files_before(name: str, folder: Path, mode: int, link: bool) -> None:
    """Writes the user's own files where the client's settings are."""
    for ours in plan_of(name, folder, True):
        path = Path(ours.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if link:
            path.symlink_to(folder / f"my-{path.name}")
        path.write_text(TEXTS[ours.kind])
        path.chmod(mode)


@pytest.mark.parametrize(("mode", "link"), [(None, False), (0o664, False), (0o400, True)])
def test_undo_restores_every_byte_and_mode_and_no_other_user_can_read_the_key(
    mode: int | None, link: bool, tmp_path: Path, cases: Cases
) -> None:
    """Neither in the settings nor in a copy or the record, from the moment at which a file exists.
    Without a mode there is neither a file nor its folder before."""
    opened: list[int] = []
    open_file = os.open

    def open_and_check(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        descriptor = open_file(path, flags, mode, **more)
        if flags & os.O_CREAT:
            opened.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    umask = os.umask(0)
    for name in CLIENTS:
        folder = tmp_path / name / "deep"
        with cases.case(client=name):
            if mode is not None:
                files_before(name, folder, mode, link)
            before = tree(tmp_path)
            with mock.patch("os.open", open_and_check):
                for default in (False, True):
                    for ours in plan_of(name, folder, default):
                        write(ours)
                    assert with_key(folder)
                    assert [file for file in with_key(folder) if not private(file)] == []
            assert undone(name, folder)
            assert tree(tmp_path) == before
            with pytest.raises(CommandError, match="nothing to undo"):
                undone(name, folder)
    os.umask(umask)
    assert set(opened) == {0o600}


def test_changes_of_the_user_stay(tmp_path: Path, cases: Cases) -> None:
    changes = {"json": '{"mine": [1, null], ', "yaml": "mine: [1, null]\n", "toml": "mine = 1\n"}
    for name in CLIENTS:
        merged = [ours for ours in plan_of(name, tmp_path / name, True) if not ours.whole]
        for ours in merged[:1]:
            with cases.case(client=name):
                path = Path(ours.path)
                write(ours)
                text = path.read_text()
                path.write_text(changes[ours.kind] + text.removeprefix("{"))
                assert undone(name, tmp_path / name)
                left = path.read_text()
                read = yaml.safe_load if ours.kind != "toml" else tomllib.loads  # JSON is YAML
                assert read(left) == {"mine": 1 if ours.kind == "toml" else [1, None]}
                assert KEY not in left
