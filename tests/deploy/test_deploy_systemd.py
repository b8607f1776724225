"""The units of deploy/systemd: systemd accepts them, and their commands are valid."""

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.up.command import STOP_ORDER
from services.runtime.config.service import ServiceConfig
from services.runtime.config.tables import STAGES
from tests.kit.every import for_each
from tests.kit.stack import MAIN
from tests.kit.waiting import LIMIT_S

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
BINARIES = "/opt/turnwire/bin"
ANALYZE = shutil.which("systemd-analyze")
SERVICES = sorted(UNITS.glob("*.service"))


def settings(unit: Path) -> Iterator[tuple[str, str]]:
    """The settings of a unit, in order."""
    for line in unit.read_text().splitlines():
        name, _, value = line.partition("=")
        if value and not line.startswith("#"):
            yield name, value


def values(unit: Path, name: str) -> list[str]:
    return [value for other, value in settings(unit) if other == name]


def unit(stage: str) -> Path:
    return UNITS / f"turnwire-{stage}@.service"


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    names = []
    for file in (*SERVICES, *UNITS.glob("*.target")):
        name = file.name.replace("@.", "@8000.")
        text = file.read_text().replace(BINARIES, str(tmp_path))
        (tmp_path / name).write_text(text)
        (tmp_path / file.name).write_text(text)
        names.append(f"./{name}")
    for binary in ("turnwire", "nats-server"):
        (tmp_path / binary).write_text("#!/bin/sh\n")
        (tmp_path / binary).chmod(0o755)
    command = [str(ANALYZE), "verify", "--man=no", *names]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert (ran.returncode, ran.stderr) == (0, "")


@for_each(SERVICES, name=lambda unit: unit.name)
def test_every_unit_restarts_and_may_do_little(unit: Path) -> None:
    found = dict(settings(unit))
    assert (found["Restart"], found["StartLimitIntervalSec"]) == ("always", "0")
    assert found["ProtectSystem"] == "strict"
    assert found["NoNewPrivileges"] == "yes"
    assert found["User"] in (UNITS / "turnwire.sysusers").read_text()
    for credential in values(unit, "LoadCredential"):
        name = credential.partition(":")[0]
        assert f"%d/{name}" in " ".join(values(unit, "Environment")), "it is used"


@for_each(STAGES)
def test_command_of_a_stage_is_valid(stage: str, tmp_path: Path) -> None:
    """With its variables, and those of /etc/turnwire."""
    (command,) = values(unit(stage), "ExecStart")
    program, _, rest = command.partition(" ")
    assert program == f"{BINARIES}/turnwire"
    serve, named, *flags = shlex.split(rest.replace("%i", "8000"))
    assert (serve, named) == ("serve", stage)
    env = {"TURNWIRE_MODEL": "acme/coder", "PATH": "/usr/bin:/bin"}
    for line in values(unit(stage), "Environment"):
        env |= dict(part.split("=", 1) for part in line.replace("%d", str(tmp_path)).split())
    ran = subprocess.run(
        [*MAIN, "config", stage, *flags],
        env=env,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ran.returncode == 0, ran.stderr
    assert f"{tmp_path}/nats.password" in ran.stdout


def test_services_may_drain_before_they_are_killed() -> None:
    drain_s = ServiceConfig().drain_s
    for stage in STAGES:
        (limit,) = values(unit(stage), "TimeoutStopSec")
        assert float(limit) > drain_s
    (limit,) = values(UNITS / "turnwire.service", "TimeoutStopSec")
    assert float(limit) > drain_s * (len(STOP_ORDER) - 1)


def test_secrets_of_the_units_are_those_that_the_command_makes(tmp_path: Path) -> None:
    made = tmp_path / "secrets"
    subprocess.run([*MAIN, "secrets", str(made)], check=True, capture_output=True, timeout=LIMIT_S)
    named = [
        Path(credential.partition(":/etc/turnwire/secrets/")[2])
        for service in SERVICES
        for credential in values(service, "LoadCredential")
    ]
    assert named
    assert not [secret for secret in named if not (made / secret).is_file()]
