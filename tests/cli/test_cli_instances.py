"""A `turnwire up` that runs is found by other commands, until it ends or is killed."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from services.cli.common import CommandError
from services.cli.instances import (
    Instance,
    announce,
    bus_defaults,
    instance_at,
    load_bus,
    newest_instance,
    server_url,
)
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.loader import Sources
from services.runtime.config.service import BusConfig

ONE = Instance(
    url="http://h:1", urls=["http://h:1", "http://h:2"], model="m", pid=7, nats_url="nats://h:3"
)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path)}


def test_newest_instance_is_found_while_it_runs(env: dict[str, str]) -> None:
    later = replace(ONE, pid=8, url="http://h:9")
    assert newest_instance(env) is None
    with announce(ONE, env):
        with announce(later, env):
            assert newest_instance(env) == later
        assert newest_instance(env) == ONE
        assert server_url(None, env) == "http://h:1"
        assert server_url("http://other", env) == "http://other"
    assert newest_instance(env) is None
    assert server_url(None, env) == "http://127.0.0.1:8000"


def test_file_of_a_killed_instance_is_removed(env: dict[str, str], tmp_path: Path) -> None:
    left = tmp_path / "turnwire/running/1.json"
    left.parent.mkdir(parents=True)
    left.write_text('{"url":"http://h:1","urls":[],"model":"m","pid":1,"nats_url":"nats://h:3"}')
    assert newest_instance(env) is None
    assert not left.exists()


def test_commands_use_its_bus_unless_another_is_named(env: dict[str, str]) -> None:
    with announce(ONE, env):
        assert Sources().load(FrontendConfig, bus_defaults(env)).config.bus.nats_url == "nats://h:3"
        named = Sources(env={"TURNWIRE_NATS_URL": "nats://n:1"})
        assert named.load(FrontendConfig, bus_defaults(env)).config.bus.nats_url == "nats://n:1"
    assert Sources().load(BusConfig, bus_defaults(env)).config.nats_url == BusConfig().nats_url


def test_instance_at_an_address_comes_before_the_newest(env: dict[str, str]) -> None:
    here = replace(ONE, pid=8, url="http://127.0.0.1:9", urls=["http://127.0.0.1:9"])
    with announce(here, env), announce(ONE, env):
        for url in ("http://127.0.0.1:9", "http://localhost:9/v1"):
            assert instance_at(url, env) == here
        assert instance_at(None, env) == instance_at("http://elsewhere:1", env) == ONE
        assert bus_defaults(env, here.url)["nats_url"] == here.nats_url


def test_default_bus_that_does_not_run_names_what_starts_one(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.create_connection", Mock(side_effect=ConnectionRefusedError))
    named = {"TURNWIRE_NATS_URL": "nats://far:4222"}
    assert load_bus(Sources(env=env | named)).nats_url == "nats://far:4222", "tried for longer"
    with announce(ONE, env):
        assert load_bus(Sources(env=env)).nats_url == ONE.nats_url
    with pytest.raises(CommandError, match="start one with `turnwire up`, or name"):
        load_bus(Sources(env=env))
    monkeypatch.setattr("socket.create_connection", Mock())
    assert load_bus(Sources(env=env)) == BusConfig(connect_timeout_s=5.0)
