"""Secrets: made once, never printed, and after a command no other user can read one, not even in a
file that was there before, for everybody."""

import os
import stat
from pathlib import Path

import pytest

from services.cli.instances import Instance, announce, newest_instance, write_ready_file
from services.cli.main import main
from services.runtime.config.tables import STAGES

pytestmark = pytest.mark.usefixtures("nothing_is_masked")


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
