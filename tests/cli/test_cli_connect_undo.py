"""`turnwire connect --undo` restores every client's files, keeps what the user has changed, and no
file with the key is readable for others at any time."""

import contextlib
import itertools
import json
import os
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import tomlkit
import yaml
from hypothesis import given
from hypothesis import strategies as st

from services.cli.common import CommandError
from services.cli.connect.client import (
    ClientPlan,
    ClientSettings,
    FileKind,
    Target,
    client_names,
    load_client,
)
from services.cli.connect.command import ConnectFlags, undo_all
from services.cli.connect.server import ServedModel
from services.cli.connect.settings_file import UnreadableFile, undo, write
from services.cli.main import main

KEY = "sk-the-secret-key"
OTHER_USER = 65_534
MODELS = [
    ServedModel("acme/coder", 131_072, capabilities={"thinking": {"supported": True}}),
    ServedModel("small", 32_768),
]


def all_plans(folder: str, **options: Any) -> dict[str, ClientPlan]:
    target = Target(
        "http://host:1", MODELS[0], key=KEY, folder=folder, env={"HOME": folder}, **options
    )
    return {name: load_client(name).plan(target) for name in client_names()}


CLIENTS = [name for name, plan in all_plans("/x").items() if plan.files]

VALUES = st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab €\"'\\\n", max_size=6)
KEYS = st.sampled_from(
    [
        "env",
        "model",
        "models",
        "provider",
        "providers",
        "turnwire",
        "model_providers",
        "agents",
        "defaults",
        "mine",
        "version",
    ]
)
DOCUMENTS = st.dictionaries(
    KEYS,
    st.recursive(
        VALUES,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=5,
)


YAML_KEYS = KEYS | st.integers(0, 9) | st.booleans() | st.dates() | st.none()
"""YAML has keys of every type, and `on` is one: `true`."""


def without_null(value: Any) -> Any:
    """TOML has no null, and tomlkit does not write lists that mix tables and values."""
    if isinstance(value, dict):
        return {key: without_null(one) for key, one in value.items() if one is not None}
    return str(value) if isinstance(value, list) else value


def text_of(
    kind: FileKind, document: dict[str, Any], draw: Callable[[st.SearchStrategy[Any]], Any]
) -> str:
    """A user's file, in one of the layouts that users have."""
    text: str
    if kind == "json":
        text = json.dumps(
            document,
            indent=draw(st.sampled_from([None, 0, 2, "\t"])),
            ensure_ascii=draw(st.booleans()),
        )
        text += draw(st.sampled_from(["", "\n", "\r\n", "\n\n"]))
        return text
    if kind == "yaml":
        return str(yaml.safe_dump(document, sort_keys=False)) if document else ""
    if kind == "env":
        text = draw(st.text("export A=b'#\n", max_size=20))
        return text
    comments = draw(st.sampled_from(["", "# the user's\n", "\n\n"]))
    text = (
        comments
        + tomlkit.dumps(without_null(document))
        + draw(st.sampled_from(["", "# end\n", "\n"]))
    )
    return text


def parsed(kind: FileKind, text: str) -> Any:
    return (
        yaml.safe_load(text)
        if kind == "yaml"
        else tomllib.loads(text)
        if kind == "toml"
        else json.loads(text)
    ) or {}


class Step(NamedTuple):
    """One `turnwire connect CLIENT --write`."""

    options: dict[str, Any]
    url: str
    model: ServedModel


STEPS = st.builds(
    Step,
    st.fixed_dictionaries({"default": st.booleans(), "catalogue_file": st.booleans()}),
    st.sampled_from(["http://host:1", "http://host:2"]),
    st.sampled_from(MODELS),
)


def plan_of(name: str, folder: Path, step: Step) -> list[ClientSettings]:
    client = load_client(name)
    catalogue = [{"slug": step.model.id}]
    target = Target(
        step.url,
        step.model,
        key=KEY,
        folder=str(folder),
        env={"HOME": str(folder)},
        catalogue=catalogue,
        **step.options,
    )
    return client.plan(target).files


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All files and folders, with modes and content."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }


@contextlib.contextmanager
def new_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(os.path.realpath(name))


def undone(name: str, folder: Path) -> list[str]:
    return undo_all(load_client(name), ConnectFlags(dir=str(folder)), {"HOME": str(folder)})


def files_before(name: str, folder: Path, data: st.DataObject) -> None:
    """Writes the user's own files where the client's settings are."""
    for step in (
        Step({"default": default, "catalogue_file": True}, "u", MODELS[0])
        for default in (False, True)
    ):
        for settings in plan_of(name, folder, step):
            path = Path(settings.path)
            if not path.exists() and data.draw(st.booleans()):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text_of(settings.kind, data.draw(DOCUMENTS), data.draw).encode())
                path.chmod(data.draw(st.sampled_from([0o600, 0o644, 0o664, 0o400])))


@pytest.mark.parametrize("name", CLIENTS)
@given(data=st.data())
def test_undo_restores_every_byte_and_mode(name: str, data: st.DataObject) -> None:
    with new_folder() as folder:
        files_before(name, folder, data)
        before = tree(folder)
        for step in data.draw(st.lists(STEPS, min_size=1, max_size=3)):
            for settings in plan_of(name, folder, step):
                write(settings)
        assert undone(name, folder)
        assert tree(folder) == before
        with pytest.raises(CommandError, match="nothing to undo"):
            undone(name, folder)


def edit(document: dict[str, Any], table: str) -> None:
    """A change of the user, beside our settings."""
    document["zz-mine"] = "top"
    if not isinstance(document.get(table), dict):
        document[table] = {}
    document[table]["zz-mine"] = {"deep": 1}


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(
    "options", [{}, {"default": True}, {"catalogue_file": True, "default": True}]
)
def test_undo_removes_folders_that_write_has_made(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "deep"
    for settings in plan_of(name, folder, Step(options, "http://host:1", MODELS[0])):
        write(settings)
    assert undone(name, folder)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("name", CLIENTS)
@given(data=st.data())
def test_changes_of_the_user_stay(name: str, data: st.DataObject) -> None:
    with new_folder() as folder:
        files_before(name, folder, data)
        step = data.draw(STEPS)
        settings = [one for one in plan_of(name, folder, step) if not one.whole]
        if not settings:
            return
        kind, path = settings[0].kind, Path(settings[0].path)
        expected = parsed(kind, path.read_text()) if path.exists() else {}
        write(settings[0])
        table = data.draw(
            st.sampled_from(
                [key for key, value in settings[0].values.items() if isinstance(value, dict)]
                or ["t"]
            )
        )
        document: Any = (
            tomlkit.parse(path.read_text()) if kind == "toml" else parsed(kind, path.read_text())
        )
        edit(document, table)
        edit(expected, table)
        path.write_text(
            tomlkit.dumps(document)
            if kind == "toml"
            else yaml.safe_dump(document)
            if kind == "yaml"
            else json.dumps(document)
        )
        mode = data.draw(st.sampled_from([0o600, 0o640]))
        path.chmod(mode)
        if data.draw(st.booleans()):
            write(
                plan_of(name, folder, step._replace(url="http://host:3"))[
                    -1 if kind == "toml" else 0
                ]
            )
        assert undone(name, folder)
        assert parsed(kind, path.read_text()) == expected
        assert KEY not in path.read_text()


@pytest.mark.parametrize("name", CLIENTS)
@given(data=st.data())
def test_no_other_user_can_read_the_key(name: str, data: st.DataObject) -> None:
    """Neither in the settings nor in a copy or the record, from the moment at which a file
    exists."""
    opened: list[int] = []
    open_file = os.open

    def open_and_check(
        path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        descriptor = open_file(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT:
            opened.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    umask = os.umask(0)
    try:
        with new_folder() as folder:
            files_before(name, folder, data)
            with mock.patch("os.open", open_and_check):
                for step in data.draw(st.lists(STEPS, min_size=1, max_size=2)):
                    for settings in plan_of(name, folder, step):
                        write(settings)
                        for path in folder.rglob("*"):
                            if path.is_file() and KEY.encode() in path.read_bytes():
                                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
                undone(name, folder)
            assert opened
            assert set(opened) == {0o600}
            assert not [
                path
                for path in folder.rglob("*")
                if path.is_file() and KEY.encode() in path.read_bytes()
            ]
    finally:
        os.umask(umask)


@given(depth=st.integers(0, 3), at=st.integers(0, 3), change=st.sampled_from(["folder", "file"]))
def test_link_that_appears_after_the_check_is_not_followed(
    depth: int, at: int, change: str
) -> None:
    """Another user replaces a folder on the way, or the file, between the check of the path and its
    use."""
    with new_folder() as folder:
        theirs = folder / "theirs"
        for part in ("", *(str(n) for n in range(depth))):
            theirs /= part
            theirs.mkdir(exist_ok=True)
        (theirs / "s.json").write_text("{}")
        path = folder.joinpath("ours", *(str(n) for n in range(depth)), "s.json")
        path.parent.mkdir(parents=True)
        path.write_text('{"a": 1}')
        swapped = (
            path
            if change == "file"
            else folder.joinpath(*path.relative_to(folder).parts[: min(at, depth) + 1])
        )
        before = tree(folder / "theirs")
        resolve = os.path.realpath

        def resolve_then_swap(name: Any, **options: Any) -> Any:
            real = resolve(name, **options)
            if not swapped.is_symlink():
                shutil.move(swapped, folder / "moved")
                target = folder.joinpath("theirs", *swapped.relative_to(folder / "ours").parts)
                swapped.symlink_to(target)
            return real

        with mock.patch("os.path.realpath", resolve_then_swap), pytest.raises(OSError):
            write(ClientSettings(str(path), "json", {"key": KEY}))
        assert tree(folder / "theirs") == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("way", ["file", "folder", "new"])
def test_link_into_a_folder_of_another_user_is_refused(tmp_path: Path, way: str) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    os.chown(theirs, OTHER_USER, OTHER_USER)
    path = ours / "s.json"
    if way == "file":
        (theirs / "s.json").write_text("{}")
        path.symlink_to(theirs / "s.json")
    elif way == "folder":
        (ours / "to").symlink_to(theirs)
        path = ours / "to" / "s.json"
    else:
        (ours / "to").symlink_to(theirs / "deep" / "er")
        path = ours / "to" / "s.json"
    before = tree(theirs)
    with pytest.raises(CommandError, match="in a folder of another user; it is unchanged"):
        write(ClientSettings(str(path), "json", {"key": KEY}))
    assert tree(theirs) == before


def test_link_to_a_file_stays_after_undo(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    real, link = tmp_path / "dotfiles" / "s.json", tmp_path / "s.json"
    real.write_text('{"a":1}')
    link.symlink_to(real)
    settings = ClientSettings(str(link), "json", {"key": KEY})
    write(settings)
    undo(settings)
    assert (link.is_symlink(), real.read_text()) == (True, '{"a":1}')
    assert sorted(os.listdir(tmp_path / "dotfiles")) == ["s.json"]


def test_link_that_was_removed_is_named_as_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dotfiles").mkdir()
    link = tmp_path / "config.toml"
    link.symlink_to(tmp_path / "dotfiles" / "config.toml")
    for settings in plan_of("codex", tmp_path, Step({"default": True}, "http://h:1", MODELS[0])):
        write(settings)
    link.rename(tmp_path / "other")
    assert main(["connect", "codex", "--dir", str(tmp_path), "--undo"]) == 1
    assert "if a file was a link, put the link back first" in capsys.readouterr().err
    (tmp_path / "other").rename(link)
    assert main(["connect", "codex", "--dir", str(tmp_path), "--undo"]) == 0
    assert os.listdir(tmp_path / "dotfiles") == []


def test_loop_of_links_and_device_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match="symbolic links"):
        write(ClientSettings(str(tmp_path / "a"), "json", {"key": KEY}))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CommandError, match="not a regular file"):
        write(ClientSettings(str(tmp_path / "pipe"), "json", {"key": KEY}))


def test_removed_file_stays_removed_and_its_old_text_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    settings = ClientSettings(str(path), "json", {"a": 1})
    path.write_text('{"mine": 1}')
    write(settings)
    path.unlink()
    (line,) = undo(settings)
    (copy,) = tmp_path.iterdir()
    assert line == f"{path}: you have removed it; its old text is in {copy.name}"
    assert copy.read_text() == '{"mine": 1}'


def test_value_that_the_user_has_changed_stays(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    settings = ClientSettings(
        str(path), "json", {"model": "ours", "provider": {"turnwire": {"url": "u", "flag": True}}}
    )
    write(settings)
    path.write_text('{"provider": {"turnwire": {"url": "u", "flag": 1}}, "model": "mine"}')
    assert undo(settings) == [f"{path}: without our settings; your changes stay"]
    assert json.loads(path.read_text()) == {"provider": {"turnwire": {"flag": 1}}, "model": "mine"}


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        (
            "toml",
            lambda text: text + "# why I use it\n",
            "your line '# why I use it' within our settings",
        ),
        ("toml", lambda text: text + "broken", "is not TOML"),
        ("json", lambda text: "// mine\n" + text, "perhaps because of comments"),
        ("yaml", lambda text: "# mine\n" + text, "it has comments"),
        ("env", lambda text: text + "echo mine\n", "not a list of variables"),
    ],
)
def test_undo_that_would_lose_an_edit_is_refused(
    tmp_path: Path, kind: FileKind, change: Any, why: str
) -> None:
    path = tmp_path / "settings"
    values = {"A": "b"} if kind == "env" else {"p": {"turnwire": {"url": "u"}}}
    settings = ClientSettings(str(path), kind, values)
    write(settings)
    path.write_text(change(path.read_text()))
    before = tree(tmp_path)
    with pytest.raises(CommandError, match=why):
        undo(settings)
    assert tree(tmp_path) == before


def test_copy_that_the_user_made_of_the_key_stays_private(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text("{}")
    path.chmod(0o644)
    settings = ClientSettings(str(path), "json", {"p": {"turnwire": {"key": KEY}}})
    write(settings)
    path.write_text(path.read_text().replace('"turnwire"', '"mine"'))
    undo(settings)
    assert (KEY in path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (True, 0o600)


def test_comment_within_our_settings_does_not_stop_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    write(ClientSettings(str(path), "toml", {"p": {"turnwire": {"url": "u"}}}))
    edited = path.read_text() + "# why I use it\n"
    path.write_text(edited)
    settings = ClientSettings(str(path), "toml", {"p": {"turnwire": {"url": "v"}}})
    write(settings)
    undo(settings)
    assert path.read_text() == edited


def test_whole_file_with_other_content_is_restored(tmp_path: Path) -> None:
    path = tmp_path / "turnwire.env"
    settings = [ClientSettings(str(path), "env", {"A": value}, whole=True) for value in "bc"]
    write(settings[0])
    path.write_text("echo mine\n")
    write(settings[1])
    undo(settings[1])
    assert path.read_text() == "echo mine\n"


def test_layout_that_a_client_writes_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"b":1,  "a":2}')
    settings = ClientSettings(str(path), "json", {"c": 3})
    write(settings)
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert undo(settings) == [f"{path}: as before"]
    assert path.read_text() == '{"b":1,  "a":2}'


def test_damaged_record_is_reported(tmp_path: Path) -> None:
    settings = ClientSettings(str(tmp_path / "s.json"), "json", {"a": 1})
    write(settings)
    (tmp_path / "s.json.turnwire-undo").write_text("{")
    with pytest.raises(CommandError, match="is damaged"):
        undo(settings)


def test_text_of_yaml_with_comments_is_not_merged(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model: x # why\n")
    with pytest.raises(UnreadableFile, match="it has comments"):
        write(ClientSettings(str(path), "yaml", {"a": 1}))
    assert path.read_text() == "model: x # why\n"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("yaml", "a: &x [*x]\n"),
        ("yaml", "a: &x {b: *x}\n"),
        ("json", '{"mine": NaN}'),
        ("json", '{"mine": [-Infinity]}'),
        ("json", '{"mine": 1e999}'),
    ],
)
def test_value_that_cannot_be_written_back_is_refused(
    tmp_path: Path, kind: FileKind, text: str
) -> None:
    path = tmp_path / "settings"
    settings = ClientSettings(str(path), kind, {"a": {"z": 1}})
    path.write_text(text)
    with pytest.raises(UnreadableFile, match=r"it has aliases|its number .* would become another"):
        write(settings)
    assert path.read_text() == text
    path.unlink()
    write(settings)
    path.write_text(text)
    with pytest.raises(UnreadableFile, match="it is unchanged"):
        undo(settings)
    assert path.read_text() == text


@given(
    document=st.dictionaries(
        YAML_KEYS, st.dictionaries(YAML_KEYS, VALUES, max_size=3) | VALUES, max_size=4
    )
)
def test_yaml_with_keys_of_any_type_is_merged_and_restored(document: dict[Any, Any]) -> None:
    with new_folder() as folder:
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        settings = ClientSettings(
            str(path), "yaml", {"model": "m", "providers": {"turnwire": {"url": "u"}}}
        )
        write(settings)
        path.write_text(path.read_text() + "zz-mine: 1\n")
        undo(settings)
        assert yaml.safe_load(path.read_text()) == {**document, "zz-mine": 1}


def test_undo_needs_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("connect", "codex", "--dir", str(tmp_path))
    assert main([*arguments, "--undo"]) == 1
    assert "nothing to undo" in capsys.readouterr().err
    for settings in plan_of(
        "codex", tmp_path, Step({"default": True, "catalogue_file": True}, "http://h:1", MODELS[0])
    ):
        write(settings)
    assert main([*arguments, "--undo"]) == 0
    assert (
        capsys.readouterr().out
        == f"{tmp_path}/turnwire-models.json: removed\n{tmp_path}/config.toml: removed\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_undo_excludes_write_and_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connect", "claude", "--write", "--undo"]) == 2
    assert "exclude each other" in capsys.readouterr().err
    assert main(["connect", "litellm", "--undo"]) == 1
    assert "a library" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["file", "folder", "above"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "file", "nowhere"])
def test_refusal_names_the_whole_path(tmp_path: Path, place: str, kind: str) -> None:
    """Something else is where the settings file or a folder on the way to it should be."""
    path = tmp_path / "above" / "folder" / "s.json"
    wrong = {"file": path, "folder": path.parent, "above": path.parent.parent}[place]
    if kind == "folder" and place != "file":
        return  # as it should be
    wrong.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        wrong.mkdir()
    elif kind == "pipe":
        os.mkfifo(wrong)
    elif kind == "nowhere":
        wrong.symlink_to("/proc/nowhere/x")
    elif place == "file":
        wrong.write_text("[" * 100_000)  # too deep for a parser
    else:
        wrong.write_text("")
    before = tree(tmp_path)
    with pytest.raises((CommandError, OSError)) as refused:
        write(ClientSettings(str(path), "json", {"key": KEY}))
    assert str(path) in str(refused.value)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("kind", ["json", "yaml", "toml"])
def test_file_that_is_too_deep_is_refused(tmp_path: Path, kind: FileKind) -> None:
    path = tmp_path / "settings"
    path.write_text("a = " * (kind == "toml") + "[" * 5_000)
    with pytest.raises(UnreadableFile, match="it is unchanged"):
        write(ClientSettings(str(path), kind, {"a": {"b": 1}}))


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("before", [None, '{"a":1}', '{"key": "mine"}'])
@pytest.mark.parametrize("earlier", [[], ["first"], ["first", "other"]])
def test_killed_write_is_undone(tmp_path: Path, before: str | None, earlier: list[str]) -> None:
    """A process that writes is killed at each of its system calls in turn."""
    names = ("open", "rename", "unlink", "mkdir", "fchmod")
    real = {name: getattr(os, name) for name in names}
    for last in itertools.count():
        path = tmp_path / str(last) / "s.json"
        if before is not None:
            path.parent.mkdir()
            path.write_text(before)
            path.chmod(0o644)
        for value in earlier:
            write(ClientSettings(str(path), "json", {"key": KEY + value}))
        calls = itertools.count()

        def call(
            name: str,
            *arguments: Any,
            calls: Iterator[int] = calls,
            last: int = last,
            **options: Any,
        ) -> Any:
            if next(calls) == last:
                raise Killed
            return real[name](*arguments, **options)

        with contextlib.ExitStack() as patched:
            for name in names:
                patched.enter_context(mock.patch.object(os, name, partial(call, name)))
            try:
                write(ClientSettings(str(path), "json", {"key": KEY + "new"}))
                break
            except Killed:
                pass
        undo(ClientSettings(str(path), "json", {}))
        assert (path.read_text() if path.exists() else None) == before, last
        assert before is None or stat.S_IMODE(path.stat().st_mode) == 0o644
    assert last > 8
