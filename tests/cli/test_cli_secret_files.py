"""Secrets and keys: made once, printed once, and after a command no other user can read one, not
even in a file that was there before, for everybody."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.instances import Instance, announce, newest_instance, write_ready_file
from services.cli.main import main
from services.frontend.http.keys import Limits
from services.runtime.config.tables import STAGES


@pytest.fixture(autouse=True)
def nothing_is_masked() -> Iterator[None]:
    """A command gets no help from the user's umask."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def holders(directory: Path, *secrets: str) -> list[Path]:
    """The files that have one of these texts."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [path for path in files if any(text.encode() in path.read_bytes() for text in secrets)]


def all_private(paths: list[Path]) -> bool:
    return all(mode(path) & 0o077 == 0 for path in paths)


def contents(directory: Path) -> dict[str, str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_text() for path in files}


@pytest.fixture
def secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """What `turnwire secrets` made."""
    directory = tmp_path / "secrets"
    assert main(["secrets", str(directory)]) == 0
    printed = capsys.readouterr()
    for file in directory.rglob("*.password"):
        assert file.read_text().strip() not in printed.out + printed.err
    return directory


def test_every_service_has_its_own_secrets(secrets: Path) -> None:
    made = contents(secrets)
    sealing = ("frontend", "preprocessor", "parser")
    assert set(made) == {
        *(f"{name}/nats.password" for name in (*STAGES, "setup", "tap")),
        *(f"{stage}/seal.key" for stage in sealing),
        *(f"{stage}/heartbeat.key" for stage in STAGES),
        "nats/passwords.conf",
    }
    assert len({made[f"{stage}/seal.key"] for stage in sealing}) == 1
    assert len({made[f"{stage}/heartbeat.key"] for stage in STAGES}) == 1
    assert made["parser/heartbeat.key"] != made["parser/seal.key"]
    passwords = {text for name, text in made.items() if name.endswith(".password")}
    assert len(passwords) == 6
    for password in passwords:
        assert f'_PASSWORD: "{password.strip()}"' in made["nats/passwords.conf"]


def test_only_the_owner_can_read_secrets_and_the_group_that_was_let_in(secrets: Path) -> None:
    """A service with another user reads its key by its group."""
    files = [path for path in secrets.rglob("*") if path.is_file()]
    assert all_private(list(secrets.rglob("*")))
    for before, after in ((0o666, 0o600), (0o640, 0o640), (0o440, 0o440)):
        for path in files:
            path.chmod(before)
        inodes = [path.stat().st_ino for path in files]
        assert main(["secrets", str(secrets)]) == 0
        assert {mode(path) for path in files} == {after}
        assert before == 0o666 or [path.stat().st_ino for path in files] == inodes


def test_second_run_keeps_what_is_there_and_adds_what_is_missing(secrets: Path) -> None:
    before = contents(secrets)
    (secrets / "worker/nats.password").unlink()
    (secrets / "nats/passwords.conf").unlink()
    main(["secrets", str(secrets)])
    after = contents(secrets)
    assert after.keys() == before.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"worker/nats.password", "nats/passwords.conf"}


def test_login_of_the_bus_is_private(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    instance = Instance(
        url="http://h", urls=["http://h"], model="m", pid=os.getpid(), nats_url="nats://me:geheim@h"
    )
    left = tmp_path / "state" / "turnwire" / "running" / f"{os.getpid()}.new"
    left.parent.mkdir(parents=True)
    left.touch(0o666)
    ready = tmp_path / "ready"
    ready.touch(0o666)
    write_ready_file(ready, instance)
    with announce(instance, env):
        assert newest_instance(env) == instance
        found = holders(tmp_path, "geheim")
        assert len(found) == 2
        assert all_private(found)
    write_ready_file(
        ready, Instance(url="http://h", urls=[], model="m", pid=1, nats_url="nats://h")
    )
    assert mode(ready) == 0o666, "nothing in it is a secret"


def made(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(["key", *argv])
    out, err = capsys.readouterr()
    return status, out.strip(), err


def test_key_file_is_private(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from services.frontend.http.auth import find_key, load_keys

    path = tmp_path / "keys"
    _, first, _ = made(capsys, "ci", "--file", str(path), "rpm=60", "models=small-*,coder")
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(path.read_text().rstrip("\n"))
    _, second, _ = made(capsys, "ops", "--file", str(path))
    known = load_keys(str(path), Limits())
    one, other = find_key(known, first), find_key(known, second)
    assert one is not None
    assert other is not None
    assert (one.name, one.models) == ("ci", ("small-*", "coder"))
    assert one.limits == Limits(requests_per_minute=60)
    assert other.name == "ops"
    assert first != second
    assert len(first) > 40
    assert first not in path.read_text()


def test_invalid_option_and_other_limits_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    made(capsys, "ci", "rpm=60", "--file", str(file))
    before = file.read_text()
    for argv, error in (
        (("ci",), f"{file}: the lines of ci have different limits"),
        (("ops", "rps=1"), "'rps=1' is not an option of a key"),
        (("ops", "rpm=0"), "rpm=0: a whole number from 1"),
    ):
        status, out, err = made(capsys, *argv, "--file", str(file))
        assert (status, out) == (2, "")
        assert err.startswith(f"turnwire key: {error}")
    assert file.read_text() == before


def test_key_that_has_expired_already_is_made_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for date, expired in (("2020-01-31", True), ("2999-01-31", False)):
        status, _, err = made(capsys, "ci", f"expires={date}")
        assert (status, "it has expired already" in err) == (0, expired)


def test_keys_of_a_file_are_listed_without_secrets_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    keys = [
        made(capsys, name, *options, "--file", str(file))[1]
        for name, *options in (("ci", "rpm=60"), ("ci", "rpm=60"), ("old", "expires=2020-01-31"))
    ]
    file.write_text(f"# of the team\n{file.read_text()}")
    file.chmod(0o640)
    hashes = [hashlib.sha256(key.encode()).hexdigest() for key in keys]

    status, listed, err = made(capsys, "list", "--file", str(file))
    assert (status, err) == (0, "")
    assert listed.splitlines() == [
        f"ci   {hashes[0][:8]}  rpm=60",
        f"ci   {hashes[1][:8]}  rpm=60",
        f"old  {hashes[2][:8]}  expires=2020-01-31 (has expired)",
    ]
    assert made(capsys, "remove", hashes[1][:8], "old", "--file", str(file))[0] == 0
    assert file.read_text() == f"# of the team\nci:{hashes[0]} rpm=60\n"
    assert mode(file) == 0o640
    assert "refuse every request" in made(capsys, "remove", "ci", "--file", str(file))[2]
    assert file.read_text() == "# of the team\n"
    assert made(capsys, "list", "--file", str(file)) == (0, "", f"{file} has no keys\n")


def test_wrong_uses_of_list_and_remove_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    made(capsys, "ci", "--file", str(file))
    before = file.read_text()
    for argv, status, error in (
        (("list",), 2, "`turnwire key list` needs the key file: --file FILE"),
        (("list", "ci", "--file", str(file)), 2, "takes only --file, not 'ci'"),
        (("remove", "--file", str(file)), 2, "name the keys to remove"),
        (("remove", "ops", "--file", str(file)), 1, f"{file} has no key ops; it has: ci"),
        (("remove", "c", "--file", str(file)), 1, "has no key c;"),
    ):
        found, out, err = made(capsys, *argv)
        assert (found, out) == (status, "")
        assert error in err
    assert file.read_text() == before
    file.write_text("ci:wrong\n")
    status, _, err = made(capsys, "list", "--file", str(file))
    assert (status, f"{file}:1: not a key; write" in err) == (2, True)
