"""The command `turnwire doctor`: what it examines and prints."""

import os
from pathlib import Path

import pytest

from services.cli.instances import Instance, announce
from services.cli.main import main
from tests.kit.nats import free_port


def test_running_servers_are_named_with_all_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    dead = f"http://127.0.0.1:{free_port()}"
    old = Instance(
        url=dead,
        urls=[dead],
        model="m",
        pid=1,
        nats_url="nats://127.0.0.1:1",
        models=["m", "small"],
    )
    new = Instance(
        url="http://h", urls=["http://h"], model="other", pid=2, nats_url="nats://127.0.0.1:2"
    )
    with announce(old, os.environ), announce(new, os.environ):
        assert main(["doctor", "--url", dead, "--connect-timeout-s", "0.2"]) == 1
    printed = capsys.readouterr().out
    assert f"turnwire up serves m, small at {dead}\n" in printed
    assert "turnwire up serves other at http://h; not examined, unless with --url" in printed
    assert "nats://127.0.0.1:1" in printed
    assert "nats://127.0.0.1:2" not in printed
    assert "none configured" not in printed


def test_report_has_no_secrets_and_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    bus = ["--nats-url", "nats://me:secret@127.0.0.1:1", "--connect-timeout-s", "0.2"]
    assert main(["doctor", "--engine", "vllm", *bus]) == 1
    printed = capsys.readouterr().out
    assert "secret" not in printed
    assert "\x1b" not in printed
    words = [line.split()[0] for line in printed.splitlines()]
    assert set(words) <= {"ok", "note", "warn", "fail"}
    assert "--engine vllm needs a --model" in printed
    assert "settings      bus.nats_url = nats://***@127.0.0.1:1 (--nats-url); " in printed
