"""`turnwire connect --write` keeps the user's own settings and a copy of the old file, `--undo`
restores every byte, and no file with the key is readable for others at any time."""

import contextlib
import itertools
import json
import os
import shutil
import stat
import tomllib
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
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
MODELS = [
    ServedModel("acme/coder", 131_072, capabilities={"thinking": {"supported": True}}),
    ServedModel("small", 32_768),
]


class Step(NamedTuple):
    """One `turnwire connect CLIENT --write`."""

    options: dict[str, Any]
    url: str
    model: ServedModel


STEP = Step({"default": True, "catalogue_file": True}, "http://h:1", MODELS[0])


def plan_of(name: str, folder: Path, step: Step) -> list[ClientSettings]:
    target = Target(
        step.url,
        step.model,
        key=KEY,
        folder=str(folder),
        env={"HOME": str(folder)},
        catalogue=[{"slug": step.model.id}],
        **step.options,
    )
    return load_client(name).plan(target).files


CLIENTS = [name for name in client_names() if plan_of(name, Path("/x"), STEP)]


def settings(path: Path, values: dict[str, Any], kind: FileKind = "json", **more: Any) -> Any:
    return ClientSettings(str(path), kind, values, **more)


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
    path.chmod(0o644)
    write(ours)
    assert private(path)


def test_only_a_new_file_gets_the_values_of_new_files(path: Path, cases: Cases) -> None:
    settings = ClientSettings(str(path), "json", {"a": 1}, new_file={"$version": 4})
    for before, version in ((None, 4), ("", 4), ("{}", 4), ('{"theme": "x"}', None)):
        with cases.case(before=before):
            path.unlink(missing_ok=True)
            if before is not None:
                path.write_text(before)
            write(settings)
            assert json.loads(path.read_text()).get("$version") == version
            undo(settings)
            assert (path.read_text() if path.exists() else None) == before


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
        ("json", b'{"mine": NaN}', "its number NaN would become another"),
        ("json", b"\xff\xfe", "not a text file"),
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


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("toml", "{}# why I use it\n", "your line '# why I use it' within our settings"),
        ("env", "{}echo mine\n", "not a list of variables"),
    ],
)
def test_undo_that_would_lose_an_edit_is_refused(
    kind: FileKind, change: str, why: str, path: Path
) -> None:
    ours = settings(path, {"A": "b"} if kind == "env" else {"p": {"turnwire": {"url": "u"}}}, kind)
    write(ours)
    path.write_text(change.replace("{}", path.read_text()))
    before = tree(path.parent)
    with pytest.raises(CommandError, match=why):
        undo(ours)
    assert tree(path.parent) == before


def test_removed_file_stays_removed_and_its_old_text_is_kept(path: Path) -> None:
    ours = settings(path, {"a": 1})
    path.write_text('{"mine": 1}')
    write(ours)
    path.unlink()
    (line,) = undo(ours)
    (copy,) = path.parent.iterdir()
    assert line == f"{path}: you have removed it; its old text is in {copy.name}"
    assert copy.read_text() == '{"mine": 1}'


def test_layout_that_a_client_writes_is_no_change(path: Path) -> None:
    path.write_text('{"b":1,  "a":2}')
    ours = settings(path, {"c": 3})
    write(ours)
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    path.chmod(0o640)
    assert undo(ours) == [f"{path}: as before"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.read_text() == '{"b":1,  "a":2}'


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
    for ours in plan_of("codex", tmp_path, STEP):
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


@pytest.mark.parametrize("swapped", ["ours", "ours/a", "ours/a/b", "ours/a/b/s.json"])
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


@pytest.mark.parametrize("before", [None, '{"a":1}', '{"key": "mine"}'])
@pytest.mark.parametrize("earlier", [[], ["first", "other"]])
def test_killed_write_is_undone(tmp_path: Path, before: str | None, earlier: list[str]) -> None:
    """A process that writes is killed at each of its system calls in turn."""
    calls = {name: getattr(os, name) for name in ("open", "rename", "unlink", "mkdir", "fchmod")}
    left = 0

    def call(name: str, *arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return calls[name](*arguments, **options)

    for number in itertools.count():
        path = tmp_path / str(number) / "s.json"
        if before is not None:
            path.parent.mkdir()
            path.write_text(before)
            path.chmod(0o644)
        for value in earlier:
            write(settings(path, {"key": KEY + value}))
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
        assert (path.read_text() if path.exists() else None) == before, number
        assert before is None or stat.S_IMODE(path.stat().st_mode) == 0o644
    assert number > 8


TEXTS: dict[FileKind, list[str]] = {
    "json": [
        "{}",
        '{"mine":1,  "env":{"A": null}, "model": "x"}\r\n',
        '{\n\t"providers": {"turnwire": {"mine": "\u20ac"}},\n\t"models": ["x", {}]\n}\n\n',
    ],
    "toml": [
        "",
        "# the user's\nmodel = 'x' # why\n\n[env]\nA = 1\n# end",
        "\n\nversion = 1\n[model_providers.turnwire]\nmine = true\n\n[providers]\n",
    ],
    "yaml": ["", "model: x\nversion: 1\n", "providers:\n  turnwire: {mine: [1, null]}\n"],
    "env": ["", "export A=b", "#'\n"],
}
"""Files of users."""
STEPS = [
    Step({"default": False, "catalogue_file": False}, "http://h:1", MODELS[0]),
    Step({"default": True, "catalogue_file": True}, "http://h:2", MODELS[1]),
    Step({"default": False, "catalogue_file": True}, "http://h:1", MODELS[1]),
]


def undone(name: str, folder: Path) -> list[str]:
    return undo_all(load_client(name), ConnectFlags(dir=str(folder)), {"HOME": str(folder)})


def files_before(name: str, folder: Path, text: int, mode: int, link: str) -> None:
    """Writes the user's own files where the client's settings are."""
    dotfiles = folder / "dotfiles"
    dotfiles.mkdir()
    for step in STEPS:
        for ours in plan_of(name, folder, step):
            path = Path(ours.path)
            if path.exists() or path.is_symlink():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if link:
                path.symlink_to(dotfiles / path.name)
            if link != "to no file":
                path.write_bytes(TEXTS[ours.kind][text].encode())
                path.chmod(mode)


@pytest.mark.parametrize(
    ("text", "mode", "link"),
    [(0, 0o644, ""), (1, 0o664, "link"), (2, 0o400, ""), (1, 0o600, "to no file")],
)
def test_undo_restores_every_byte_and_mode_and_no_other_user_can_read_the_key(
    text: int, mode: int, link: str, tmp_path: Path, cases: Cases
) -> None:
    """Neither in the settings nor in a copy or the record, from the moment at which a file
    exists."""
    opened: list[int] = []
    open_file = os.open

    def open_and_check(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        descriptor = open_file(path, flags, mode, **more)
        if flags & os.O_CREAT:
            opened.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    umask = os.umask(0)
    for name in CLIENTS:
        for steps in (STEPS[:1], STEPS[1:2], STEPS):
            folder = tmp_path / f"{name}-{len(opened)}"
            folder.mkdir()
            with cases.case(client=name, steps=len(steps)):
                files_before(name, folder, text, mode, link)
                before = tree(folder)
                with mock.patch("os.open", open_and_check):
                    for step in steps:
                        for ours in plan_of(name, folder, step):
                            write(ours)
                        assert with_key(folder)
                        assert all(map(private, with_key(folder)))
                assert undone(name, folder)
                assert tree(folder) == before
                with pytest.raises(CommandError, match="nothing to undo"):
                    undone(name, folder)
    os.umask(umask)
    assert set(opened) == {0o600}


def test_undo_removes_folders_that_write_has_made(tmp_path: Path, cases: Cases) -> None:
    folder = tmp_path / "new" / "deep"
    for name in CLIENTS:
        for options in ({}, {"default": True}, STEP.options):
            with cases.case(client=name, options=options):
                for ours in plan_of(name, folder, STEP._replace(options=options)):
                    write(ours)
                assert undone(name, folder)
                assert tree(tmp_path) == {}


def test_changes_of_the_user_stay(tmp_path: Path, cases: Cases) -> None:
    changes = {"json": '{"mine": [1, null], ', "yaml": "mine: [1, null]\n", "toml": "mine = 1\n"}
    for name in CLIENTS:
        merged = [ours for ours in plan_of(name, tmp_path / name, STEP) if not ours.whole]
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
