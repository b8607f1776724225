"""Heartbeats that were forged, changed, recorded or sent under another name change nothing, and are
counted."""

from pathlib import Path

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.control import Heartbeat, Load
from services.runtime.heartbeat_auth import FRESH_S, HeartbeatAuth

WORKER = Heartbeat("worker", "w-1", load=Load(running=3), version="1", host="h", pid=7)
SUBJECT = subjects.heartbeat("worker", "w-1")


class Peer:
    """One process's view: its key, its clock, its log."""

    def __init__(self, directory: Path, key: str | None = "a key") -> None:
        self.number = 0
        self.now = 1_800_000_000.0
        self.log = structlog.testing.LogCapture()
        self.metrics = CollectorRegistry()
        log = structlog.wrap_logger(structlog.PrintLogger(), processors=[self.log])
        file = directory / f"{key}.key"
        if key is not None:
            file.write_text(key + "\n")
        self.auth = HeartbeatAuth(
            None if key is None else str(file), self.metrics, log, lambda: self.now
        )

    def sends(self) -> bytes:
        """The next heartbeat of the worker."""
        self.number += 1
        return self.auth.encode(msgspec.structs.replace(WORKER, number=self.number))

    def takes(self, data: bytes, subject: str = SUBJECT) -> bool:
        heartbeat = self.auth.decode(subject, data)
        assert heartbeat is None or heartbeat.load == WORKER.load
        return heartbeat is not None

    @property
    def refused(self) -> float:
        value = self.metrics.get_sample_value("turnwire_heartbeats_refused_total")
        assert value is not None
        return value


@pytest.fixture
def sender(tmp_path: Path) -> Peer:
    return Peer(tmp_path)


@pytest.fixture
def receiver(tmp_path: Path) -> Peer:
    return Peer(tmp_path)


@pytest.mark.parametrize("key", [None, "a key"])
@given(order=st.lists(st.integers(0, 4)))
def test_heartbeat_that_a_newer_one_has_overtaken_has_no_effect(
    tmp_path_factory: pytest.TempPathFactory, key: str | None, order: list[int]
) -> None:
    """A server of a cluster that hung delivers them late."""
    peer = Peer(tmp_path_factory.getbasetemp(), key)
    sent = [peer.sends() for _ in range(5)]
    newest = [number > max(order[:at], default=-1) for at, number in enumerate(order)]
    assert [peer.takes(sent[number]) for number in order] == newest
    assert peer.refused == (newest.count(False) if key else 0), (
        "without a key, old ones do not show a forger"
    )


def test_without_a_key_only_subject_and_number_count(tmp_path: Path) -> None:
    peer = Peer(tmp_path, None)
    data = msgspec.json.encode(WORKER)
    assert peer.auth.encode(WORKER) == data
    assert peer.takes(data)
    assert peer.takes(peer.sends())
    assert not peer.takes(data, subjects.heartbeat("worker", "w-2"))
    assert not peer.takes(b"{}")
    assert peer.refused == 2


def test_forged_and_changed_heartbeats_are_refused(
    sender: Peer, receiver: Peer, tmp_path: Path
) -> None:
    good = sender.sends()
    forged = [
        msgspec.json.encode(WORKER),
        Peer(tmp_path, "another key").sends(),
        good.replace(b'"running":3', b'"running":4'),
        good + b" ",
        good[:-1] + b',"leaving":true}',
        good.replace(b'"mac"', b'"cam"'),
        b"",
    ]
    assert [receiver.takes(data) for data in forged] == [False] * len(forged)
    for stage, process in (("parser", "w-1"), ("worker", "w-2")):
        assert not receiver.takes(good, subjects.heartbeat(stage, process))
    assert receiver.takes(good)


def test_a_process_that_starts_later_takes_no_old_recording(sender: Peer, receiver: Peer) -> None:
    recorded = sender.sends()
    receiver.now += FRESH_S + 1
    assert not receiver.takes(recorded)
    receiver.now -= 2 * FRESH_S + 2
    assert not receiver.takes(recorded), "a sender whose clock is ahead"
