"""Processes of other protocols are not used, and reported once each, whatever their heartbeats
contain."""

import time

import msgspec
import pytest
import structlog
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.control import Heartbeat, ModelCard
from services.runtime import other_protocols
from services.runtime.config import BusConfig, ServiceConfig
from services.runtime.observability.log_lines import RateLimit
from services.runtime.other_protocols import MAX_PROCESSES, OtherProtocols
from services.runtime.process import Process
from tests.kit.nats import NatsServer
from tests.kit.processes import MakeProcess
from tests.kit.waiting import eventually


def captured() -> tuple[structlog.typing.FilteringBoundLogger, structlog.testing.LogCapture]:
    capture = structlog.testing.LogCapture()
    return structlog.wrap_logger(structlog.PrintLogger(), processors=[capture]), capture


async def test_only_processes_of_the_own_protocol_are_registered_and_each_other_one_is_logged_once(
    nats: NatsServer, make_process: MakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_protocols, "RateLimit", lambda: RateLimit(0))
    log, capture = captured()
    config = ServiceConfig(bus=BusConfig(nats_url=nats.url, dead_after_s=600.0))
    process = Process("frontend", config, log)
    await process.connect()
    sender = await make_process("worker", "w")
    readable = msgspec.json.encode(Heartbeat("worker", "b.1", number=1, models=[ModelCard("m")]))
    own = subjects.heartbeat("worker", "b.1")
    for prefix in ("tw.v1", "tw.v22", "tw.2", "tw.v1"):
        for data in (readable, b"\xff of another form"):
            assert sender.bus.publish(own.replace(subjects.PREFIX, prefix, 1), data)
    assert sender.bus.publish(own, readable)
    sender.heartbeats.send()
    await eventually(lambda: process.registry.get("worker", sender.id) is not None)
    await process.bus.close()
    assert [peer.id for peer in process.registry.able("worker", "m")] == ["b.1"]
    lines = [e for e in capture.entries if e["event"] == "process.other_protocol"]
    logged = [(e["peer_protocol"], e["peer_stage"], subjects.unescape(e["peer"])) for e in lines]
    assert logged == [(prefix, "worker", "b.1") for prefix in ("tw.v1", "tw.v22", "tw.2")]
    assert process.metrics.get_sample_value("turnwire_other_protocol_processes") == 3


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_invented_processes_cost_one_line_a_second_and_a_bounded_memory(clock: list[float]) -> None:
    log, capture = captured()
    metrics = CollectorRegistry()
    others = OtherProtocols(3.5, metrics, log)
    for number in range(3 * MAX_PROCESSES):
        others.receive(f"tw.v9.beat.worker.{number}")
    assert len(capture.entries) == 1
    assert metrics.get_sample_value("turnwire_other_protocol_processes") == MAX_PROCESSES
    clock[0] += 4
    assert metrics.get_sample_value("turnwire_other_protocol_processes") == 0
