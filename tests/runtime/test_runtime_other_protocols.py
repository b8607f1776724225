"""Processes of other protocols are not used, and reported once each, whatever their heartbeats
contain."""

import msgspec
import pytest

from schemas import subjects
from schemas.control import Heartbeat, ModelCard
from services.runtime.observability.log_lines import RateLimit
from services.runtime.presence import other_protocols
from tests.kit.processes import MakeProcess
from tests.kit.waiting import eventually


async def test_only_processes_of_the_own_protocol_are_registered_and_each_other_one_is_logged_once(
    make_process: MakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_protocols, "RateLimit", lambda: RateLimit(0))
    process = await make_process("frontend", "f", dead_after_s=600.0)
    logged: list[tuple[str, str, str]] = []

    def warn(event: str, **fields: str) -> None:
        logged.append((fields["peer_protocol"], fields["peer_stage"], fields["peer"]))

    monkeypatch.setattr(process.log, "warning", warn, raising=False)
    sender = await make_process("worker", "w")
    readable = msgspec.json.encode(Heartbeat("worker", "b.1", number=1, models=[ModelCard("m")]))
    own = subjects.heartbeat("worker", "b.1")
    for prefix in ("tw.v1", "tw.v22", "tw.2", "tw.v1"):
        for data in (readable, b"\xff of another form"):
            assert sender.bus.publish(own.replace(subjects.PREFIX, prefix, 1), data)
    assert sender.bus.publish(own, readable)
    sender.heartbeats.send()
    await eventually(lambda: process.registry.get("worker", sender.id) is not None)
    assert [peer.id for peer in process.registry.able("worker", "m")] == ["b.1"]
    peer = own.rpartition(".")[2]
    assert logged == [(prefix, "worker", peer) for prefix in ("tw.v1", "tw.v22", "tw.2")]
    assert process.metrics.get_sample_value("turnwire_other_protocol_processes") == 3
