"""Secrets are made once, for their owner only, and agree with each other."""

import stat
from pathlib import Path

import pytest

from services.cli.main import main
from services.runtime.config import STAGES, read_secret


@pytest.fixture
def made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["secrets", str(tmp_path / "secrets")]) == 0
    printed = capsys.readouterr()
    for file in (tmp_path / "secrets").rglob("*.password"):
        assert read_secret(str(file)) not in printed.out + printed.err
    return tmp_path / "secrets"


def files(directory: Path) -> dict[str, str]:
    return {
        str(file.relative_to(directory)): file.read_text()
        for file in directory.rglob("*")
        if file.is_file()
    }


def test_every_service_has_its_own_secrets(made: Path) -> None:
    assert set(files(made)) == {
        "frontend/nats.password",
        "frontend/seal.key",
        "preprocessor/nats.password",
        "preprocessor/seal.key",
        "worker/nats.password",
        "parser/nats.password",
        "parser/seal.key",
        "setup/nats.password",
        "tap/nats.password",
        *(f"{stage}/heartbeat.key" for stage in STAGES),
        "nats/passwords.conf",
    }
    assert (
        len(
            {
                (made / stage / "seal.key").read_text()
                for stage in ("frontend", "parser", "preprocessor")
            }
        )
        == 1
    )
    assert len({(made / stage / "heartbeat.key").read_text() for stage in STAGES}) == 1
    assert (made / "parser/heartbeat.key").read_text() != (made / "parser/seal.key").read_text()
    passwords = [text for name, text in files(made).items() if name.endswith(".password")]
    assert len(set(passwords)) == 6
    for password in passwords:
        assert f'_PASSWORD: "{password.strip()}"' in (made / "nats/passwords.conf").read_text()


def test_only_the_owner_can_read_secrets(made: Path) -> None:
    for path in made.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_second_run_keeps_what_is_there_and_adds_what_is_missing(made: Path) -> None:
    before = files(made)
    (made / "worker/nats.password").unlink()
    (made / "nats/passwords.conf").unlink()
    main(["secrets", str(made)])
    after = files(made)
    assert after.keys() == before.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"worker/nats.password", "nats/passwords.conf"}
