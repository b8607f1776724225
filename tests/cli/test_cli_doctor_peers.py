"""What heartbeats show of clocks, keys and models, and what writes show of the store."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import structlog
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.control import Heartbeat, ModelCard, Stage
from services.cli.doctor import peers, store
from services.cli.doctor.peers import HeartbeatListener
from services.runtime.config.service import BusConfig
from services.runtime.nats.bus import Bus, Delivery
from services.runtime.presence.heartbeat_auth import HeartbeatAuth
from tests.kit.nats import NatsServer
from tests.kit.waiting import eventually
from tests.runtime.bus_clients import connected, serving

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


async def test_store_that_takes_no_writes_fails(
    own_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.runtime.storage.write_watch.TIMEOUT_S", 0.2)
    async with connected(own_nats.url) as client, connected(own_nats.url) as stream:
        bus = client.bus
        missing = await store.check_store(bus)
        assert (missing.status, missing.text[-10:]) == ("note", "is missing")
        unmade = await store.check_store(bus, makes_buckets=True)
        assert (unmade.status, "Is the disk of nats-server full" in unmade.text) == ("fail", True)
        await stream.bus.subscribe("$KV.tw_ledger.>", lambda _: None)  # hangs
        await stream.bus.flush()
        hung = await store.check_store(bus)
        assert (hung.status, hung.about) == ("fail", "store")
        assert hung.text.startswith("tw_ledger: no answer; tw_responses, tw_media, tw_rollouts:")
    own_nats.make_buckets()
    async with connected(own_nats.url) as client:
        await eventually(lambda: client.bus.connected)
        taken = await store.check_store(client.bus)
        assert taken.status == "ok"


RIGHTS = """authorization { users: [
  { user: all, password: "s3cret" }
  { user: some, password: "s3cret", permissions: {
      publish: ["$KV.tw_responses.*", "$KV.tw_rollouts.*.*"], subscribe: [">"] } } ] }"""


async def test_bucket_that_hangs_is_told_from_those_that_permissions_forbid(
    nats_binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.runtime.storage.write_watch.TIMEOUT_S", 0.5)
    with serving(nats_binary, tmp_path, RIGHTS) as address:
        async with (
            connected(f"nats://some:s3cret@{address}") as client,
            connected(f"nats://all:s3cret@{address}") as stream,
        ):
            await stream.bus.subscribe("$KV.tw_responses.>", lambda _: None)
            await stream.bus.flush()
            found = await store.check_store(client.bus)
    assert found.status == "fail"
    forbidden = f"tw_ledger, tw_media: {store.FORBIDDEN}"
    assert found.text.startswith(f"{forbidden}; tw_responses: no answer; tw_rollouts: is missing.")
