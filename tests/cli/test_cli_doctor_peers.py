"""What heartbeats show of clocks, keys and models, and a server of its address."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import structlog
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.control import Heartbeat, ModelCard, Stage
from services.cli.doctor import peers
from services.cli.doctor.peers import HeartbeatListener, check_server
from services.runtime.config.service import BusConfig
from services.runtime.nats.bus import Bus, Delivery
from services.runtime.presence.heartbeat_auth import HeartbeatAuth
from tests.kit.frontend import serving
from tests.kit.nats import NatsServer, free_port

NOW = 1_000_000.0


def heartbeat(stage: Stage, id: str, model: str = "") -> Heartbeat:
    models = [ModelCard(model)] if model else []
    return Heartbeat(stage, id, number=1, models=models, host="node-1")


@pytest.fixture
def deliver(nats: NatsServer) -> Callable[[HeartbeatListener, Heartbeat, bytes], None]:
    bus = Bus(
        BusConfig(nats_url=nats.url),
        name="test",
        inbox_prefix="_INBOX_test",
        log=structlog.get_logger(),
        on_fatal=print,
    )

    def deliver(listener: HeartbeatListener, sent: Heartbeat, data: bytes) -> None:
        listener.receive(Delivery(bus, subjects.heartbeat(sent.stage, sent.id), data, ""))

    return deliver


def auth(key: Path | None, clock: Callable[[], float]) -> HeartbeatAuth:
    file = None if key is None else str(key)
    return HeartbeatAuth(file, CollectorRegistry(), structlog.get_logger(), clock)


def test_clock_that_is_off_is_named_with_its_machine(
    deliver: Callable[[HeartbeatListener, Heartbeat, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    listener = HeartbeatListener(BusConfig())
    for id, off_s in (("right", 0.5), ("slow", -40.0)):
        sent = heartbeat("worker", id)
        deliver(listener, sent, auth(None, lambda off_s=off_s: NOW + off_s).encode(sent))  # type: ignore[misc]
    (finding,) = peers.check_clocks(listener)
    assert finding.status == "warn"
    assert "worker slow on node-1 by +40 s. Set the clocks by NTP;" in finding.text
    assert "right" not in finding.text

    listener.behind_s["worker right on node-1"] = 40.0
    (finding,) = peers.check_clocks(listener)
    assert "first this machine's: all others differ from it" in finding.text
    listener.behind_s["worker right on node-1"] = 400.0
    (finding,) = peers.check_clocks(listener)
    assert finding.status == "fail"
    assert "others refuse their signed heartbeats" in finding.text


def test_worker_with_another_key_is_found(
    deliver: Callable[[HeartbeatListener, Heartbeat, bytes], None], tmp_path: Path
) -> None:
    keys = {name: tmp_path / name for name in ("ours", "theirs")}
    for name, file in keys.items():
        file.write_text(f"the key {name}")
    worker, parser = heartbeat("worker", "w"), heartbeat("parser", "p")
    known = HeartbeatListener(BusConfig(heartbeat_key_file=str(keys["ours"])))
    unknown = HeartbeatListener(BusConfig())
    for listener in (known, unknown):
        deliver(listener, worker, auth(keys["theirs"], lambda: NOW).encode(worker))
        deliver(listener, parser, auth(keys["ours"], lambda: NOW).encode(parser))
    (finding,) = peers.check_signatures(known)
    assert finding.status == "fail"
    assert "key of --heartbeat-key-file: worker w on node-1. Processes" in finding.text
    assert not [*peers.check_signatures(unknown)], "that takes the key"


def test_process_that_a_frontend_does_not_see_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [heartbeat("worker", "w-1"), heartbeat("worker", "w-2"), heartbeat("frontend", "f")]
    health = {"stages": {"worker": [{"id": "w-1"}], "parser": []}}
    answers = {
        "http://a/health": (200, msgspec.json.encode(health)),
        "http://b/health": (200, b"x"),
    }
    monkeypatch.setattr(peers, "get", lambda url, _timeout: answers[url])
    (finding,) = peers.check_frontends(found, ["http://a/", "http://b"])
    assert finding.status == "fail"
    assert finding.text.startswith("http://a/ does not see worker w-2 on node-1: another")


def test_process_that_has_left_is_not_looked_for(
    deliver: Callable[[HeartbeatListener, Heartbeat, bytes], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """As after each step of a rolling restart, whatever its clock and its key."""
    health = {"stages": {"worker": [{"id": "new"}], "parser": []}}
    monkeypatch.setattr(peers, "get", lambda *_: (200, msgspec.json.encode(health)))
    key = tmp_path / "key"
    key.write_text("the key of heartbeats")
    listener = HeartbeatListener(BusConfig(heartbeat_key_file=str(key)))
    old, new = heartbeat("worker", "old"), heartbeat("worker", "new")
    for sent in (old, msgspec.structs.replace(old, leaving=True)):
        deliver(listener, sent, auth(None, lambda: NOW).encode(sent))
    deliver(listener, new, auth(key, time.time).encode(new))
    assert not [*peers.check_frontends(listener.heartbeats.values(), ["http://a"])]
    assert not [*peers.check_signatures(listener), *peers.check_clocks(listener)]


def test_server_of_another_bus_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    health = {"stages": {"worker": [{"id": "w-far"}], "parser": []}}
    monkeypatch.setattr(peers, "get", lambda *_: (200, msgspec.json.encode(health)))
    (finding,) = peers.check_frontends([heartbeat("worker", "w-near")], ["http://a"])
    assert (finding.status, finding.about) == ("warn", "another bus")


async def test_server_is_checked_by_its_url(nats: NatsServer) -> None:
    silent = check_server(f"127.0.0.1:{free_port()}", None)
    assert (silent.status, silent.about) == ("fail", "server")
    assert "no Turnwire server answers" in silent.text
    assert check_server("ftp://x", None).status == "fail"
    other = await asyncio.to_thread(check_server, f"127.0.0.1:{nats.port}", None)
    assert other.status == "fail", "another program answers"
    async with serving() as served:
        found = await asyncio.to_thread(check_server, served.url, None)
    models = "acme/served-model (131072), claude-alias (131072)"
    assert (found.status, found.text) == ("ok", f"{served.url} serves {models}")
