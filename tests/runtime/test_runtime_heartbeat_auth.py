"""Heartbeats that were forged, changed, recorded or sent under another name change nothing."""

from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.control import Heartbeat, Load
from services.runtime.presence.heartbeat_auth import FRESH_S, HeartbeatAuth

WORKER = Heartbeat("worker", "w-1", load=Load(running=3), version="1", host="h", pid=7)
SUBJECT = subjects.heartbeat("worker", "w-1")


class Peer:
    """One process's view: its key, its clock."""

    def __init__(self, directory: Path, key: str = "a key") -> None:
        self.number = 0
        self.now = 1_800_000_000.0
        file = directory / f"{key}.key"
        file.write_text(f"{key}\n")
        path = str(file) if key else None
        self.auth = HeartbeatAuth(path, CollectorRegistry(), Mock(), lambda: self.now)

    def sends(self) -> bytes:
        """The next heartbeat of the worker."""
        self.number += 1
        return self.auth.encode(msgspec.structs.replace(WORKER, number=self.number))

    def takes(self, data: bytes, subject: str = SUBJECT) -> bool:
        heartbeat = self.auth.decode(subject, data)
        assert heartbeat is None or heartbeat.load == WORKER.load
        return heartbeat is not None


@pytest.mark.parametrize("key", ["", "a key"])
def test_heartbeat_that_a_newer_one_has_overtaken_has_no_effect(tmp_path: Path, key: str) -> None:
    """A server of a cluster that hung delivers them late."""
    peer = Peer(tmp_path, key)
    first, second, third = (peer.sends() for _ in range(3))
    taken = [peer.takes(data) for data in (second, first, second, third, second)]
    assert taken == [True, False, False, True, False]
    assert peer.auth.refused == (3 if key else 0), "without a key, old ones do not show a forger"


def test_without_a_key_only_subject_and_number_count(tmp_path: Path) -> None:
    peer = Peer(tmp_path, "")
    data = msgspec.json.encode(WORKER)
    sent = msgspec.json.decode(peer.auth.encode(WORKER), type=Heartbeat)
    assert msgspec.structs.replace(sent, time=0.0) == WORKER
    assert sent.time > 0
    assert peer.takes(data)
    assert peer.takes(peer.sends())
    assert not peer.takes(data, subjects.heartbeat("worker", "w-2"))
    assert not peer.takes(b"{}")
    assert peer.auth.refused == 2


def test_forged_and_changed_heartbeats_are_refused(tmp_path: Path) -> None:
    sender, receiver = Peer(tmp_path), Peer(tmp_path)
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


def test_a_process_that_starts_later_takes_no_old_recording(tmp_path: Path) -> None:
    sender, receiver = Peer(tmp_path), Peer(tmp_path)
    recorded = sender.sends()
    receiver.now += FRESH_S + 1
    assert not receiver.takes(recorded)
    receiver.now -= 2 * FRESH_S + 2
    assert not receiver.takes(recorded), "a sender whose clock is ahead"
