"""After a command, no other user can read a file with a secret: not even one that was there before,
for everybody."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.common import CommandError
from services.cli.connect.client import ClientSettings, Target, client_names, load_client
from services.cli.connect.server import ServedModel
from services.cli.connect.settings_file import write
from services.cli.instances import Instance, announce, newest_instance, write_ready_file
from services.cli.main import main
from services.cli.up.plan import prepare_state
from tests.cli.test_cli_up_plan import plan

KEY = "tw-geheim-0123456789"
CLIENTS = [
    name
    for name in client_names()
    if not load_client(name).plan(Target("http://h", ServedModel("m"))).code
]


@pytest.fixture(autouse=True)
def nothing_is_masked() -> Iterator[None]:
    """A command gets no help from the user's umask."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_for_all(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o666)


def readable_by_others(directory: Path, *texts: str) -> list[str]:
    """Files with one of these texts that others may read."""
    found = []
    for path in directory.rglob("*"):
        if path.is_file() and any(text.encode() in path.read_bytes() for text in texts):
            found += [str(path)] if stat.S_IMODE(path.stat().st_mode) & 0o077 else []
    return found


def files_with(directory: Path, text: str) -> int:
    return sum(
        text.encode() in path.read_bytes() for path in directory.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("linked", [False, True])
def test_keys_of_clients_are_private(tmp_path: Path, name: str, linked: bool) -> None:
    home, dotfiles = tmp_path / "home", tmp_path / "dotfiles"
    dotfiles.mkdir()
    for key in (KEY + "1", KEY + "1", KEY + "2"):
        target = Target("http://h:1", ServedModel("m", 1000), key=key, env={"HOME": str(home)})
        for settings in load_client(name).plan(target).files:
            path = Path(settings.path)
            assert path.is_relative_to(home)
            if linked and not path.is_symlink():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to(dotfiles / path.name)
            write(settings)
        assert readable_by_others(tmp_path, KEY) == []
        assert files_with(tmp_path, KEY)
        open_for_all(tmp_path)
        for copy in tmp_path.rglob("*.bak"):
            copy.unlink()  # it was open to all before


def test_secrets_of_a_deployment_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "secrets"
    for _ in range(2):
        assert main(["secrets", str(directory)]) == 0
        secrets = [path.read_text().strip() for path in directory.rglob("*") if path.is_file()]
        assert len(secrets) > 10
        assert readable_by_others(tmp_path, *secrets) == []
        open_for_all(directory)


@pytest.mark.parametrize("mode", [0o640, 0o660, 0o440])
def test_rights_of_a_group_stay(tmp_path: Path, mode: int) -> None:
    """They are set on purpose: a service with another user reads its key by its group."""
    directory = tmp_path / "secrets"
    assert main(["secrets", str(directory)]) == 0
    files = [path for path in directory.rglob("*") if path.is_file()]
    for path in files:
        path.chmod(mode)
    before = {path: (path.stat().st_mode, path.stat().st_ino) for path in files}
    assert main(["secrets", str(directory)]) == 0
    assert {path: (path.stat().st_mode, path.stat().st_ino) for path in files} == before


def test_key_is_stored_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "ci", "--file", str(tmp_path / "keys.txt")]) == 0
    assert files_with(tmp_path, capsys.readouterr().out.strip()) == 0
    assert stat.S_IMODE((tmp_path / "keys.txt").stat().st_mode) == 0o600


def test_seal_key_of_up_is_private(tmp_path: Path, demo_dir: Path) -> None:
    made = plan("--model", str(demo_dir), state=tmp_path / "state")
    for _ in range(2):
        prepare_state(made)
        assert readable_by_others(tmp_path, (tmp_path / "state" / "seal.key").read_text()) == []
        open_for_all(tmp_path)


def test_login_of_the_bus_is_private(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    instance = Instance("http://h", ["http://h"], "m", os.getpid(), "nats://me:geheim@h")
    left = tmp_path / "state" / "turnwire" / "running" / f"{os.getpid()}.new"
    left.parent.mkdir(parents=True)
    left.touch(0o666)
    (tmp_path / "ready").touch(0o666)
    write_ready_file(tmp_path / "ready", instance)
    with announce(instance, env):
        assert newest_instance(env) == instance
        assert files_with(tmp_path, "geheim") == 2
        assert readable_by_others(tmp_path, "geheim") == []
    write_ready_file(tmp_path / "ready", Instance("http://h", [], "m", 1, "nats://h"))
    assert stat.S_IMODE((tmp_path / "ready").stat().st_mode) == 0o666, "nothing in it is a secret"


def settings(path: Path) -> ClientSettings:
    return ClientSettings(str(path), "json", {"key": KEY})


@pytest.mark.parametrize(
    "links", [{"s.json": "s.json"}, {"s.json": "b", "b": "s.json"}, {"d": "d", "s.json": "d/x"}]
)
def test_loop_of_links_is_one_line(
    tmp_path: Path,
    links: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        write(settings(tmp_path / "s.json"))
    assert all((tmp_path / name).is_symlink() for name in links)


def test_link_into_a_folder_of_another_user_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    link = tmp_path / "s.json"
    link.symlink_to(tmp_path / "theirs" / "s.json")
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(CommandError, match="another user"):
        write(settings(link))
    assert list((tmp_path / "theirs").iterdir()) == []
    own = tmp_path / "own.json"  # such as on a volume
    write(settings(own))
    assert KEY in own.read_text()


def test_file_that_is_not_text_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CommandError, match="not a text file"):
        write(settings(path))
    assert path.read_bytes() == b"\xff\xfe"
