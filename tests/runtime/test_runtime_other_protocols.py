"""Processes of other protocols are not used, and reported once each, whatever their heartbeats
contain."""

import time
from collections import Counter
from typing import get_args

import msgspec
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.control import Heartbeat, ModelCard, Stage
from schemas.errors import Unavailable
from services.runtime import other_protocols
from services.runtime.config import BusConfig, ServiceConfig
from services.runtime.observability.log_lines import RateLimit
from services.runtime.other_protocols import MAX_PROCESSES, OtherProtocols
from services.runtime.process import Process
from tests.kit.nats import NatsServer
from tests.kit.processes import MakeProcess
from tests.kit.waiting import LIMIT_S, eventually

OTHERS = ("tw.v1", "tw.v3", "tw.v22", "tw.2")
NAMES = ["a", "b.1"]
Peer = tuple[str, Stage, str]
"""Prefix, stage and id."""
peers = st.tuples(
    st.sampled_from([subjects.PREFIX, *OTHERS]),
    st.sampled_from(get_args(Stage)),
    st.sampled_from(NAMES),
)


def captured() -> tuple[structlog.typing.FilteringBoundLogger, structlog.testing.LogCapture]:
    capture = structlog.testing.LogCapture()
    return structlog.wrap_logger(structlog.PrintLogger(), processors=[capture]), capture


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=st.lists(st.tuples(peers, st.booleans()), max_size=40))
async def test_only_processes_of_the_own_protocol_are_registered_and_each_other_one_is_logged_once(
    sent: list[tuple[Peer, bool]],
    nats: NatsServer,
    make_process: MakeProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(other_protocols, "RateLimit", lambda: RateLimit(0))
    log, capture = captured()
    process = Process(
        "frontend", ServiceConfig(bus=BusConfig(nats_url=nats.url, dead_after_s=600.0)), log
    )
    await process.connect()
    seen: list[tuple[Stage, str]] = []
    process.registry.on_heartbeat(lambda heartbeat: seen.append((heartbeat.stage, heartbeat.id)))
    sender = await make_process("worker", "w")
    for number, ((prefix, stage, name), readable) in enumerate(sent, 1):
        heartbeat = Heartbeat(stage, name, number=number, models=[ModelCard("m")])
        own = subjects.heartbeat(stage, name)
        data = (
            msgspec.json.encode(heartbeat)
            if readable or prefix == subjects.PREFIX
            else b"\xff of another form"
        )
        assert sender.bus.publish(own.replace(subjects.PREFIX, prefix, 1), data)
    sender.heartbeats.send()
    await eventually(lambda: ("worker", sender.id) in seen)
    await process.bus.close()
    used = [(stage, name) for (prefix, stage, name), _ in sent if prefix == subjects.PREFIX]
    assert [peer for peer in seen if peer[1] in NAMES] == used
    assert {
        (b.stage, b.id) for stage in get_args(Stage) for b in process.registry.able(stage, "m")
    } == set(used)
    lines = [e for e in capture.entries if e["event"] == "process.other_protocol"]
    logged = Counter(
        (e["peer_protocol"], e["peer_stage"], subjects.unescape(e["peer"])) for e in lines
    )
    assert logged == Counter({peer for peer, _ in sent if peer[0] != subjects.PREFIX})
    assert all(
        entry["protocol"] == subjects.PREFIX and entry["log_level"] == "warning" for entry in lines
    )
    assert process.metrics.get_sample_value("turnwire_other_protocol_processes") == len(logged)


async def test_request_of_another_protocol_is_refused_at_once(make_process: MakeProcess) -> None:
    """By NATS, also where its sender is a release that does not tell protocols apart."""
    receiver, sender = await make_process("preprocessor", "p"), await make_process("frontend", "f")
    subject = subjects.turn("m", receiver.id)
    await receiver.subscribe(subject, lambda delivery: delivery.reply(b"{}"))
    await receiver.bus.flush()
    assert await sender.bus.request(subject, b"{}", LIMIT_S) == b"{}"
    with pytest.raises(Unavailable):
        await sender.bus.request(subject.replace(subjects.PREFIX, "tw.v3", 1), b"{}", LIMIT_S)


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


def test_each_of_many_processes_is_logged_once(clock: list[float]) -> None:
    """The line that the limit leaves out follows at a later heartbeat."""
    log, capture = captured()
    others = OtherProtocols(3.5, CollectorRegistry(), log)
    names = [f"w{number}" for number in range(20)]
    for _ in range(60):
        for name in names:
            others.receive(f"tw.v9.beat.worker.{name}")
        clock[0] += 1.0
    assert sorted(entry["peer"] for entry in capture.entries) == sorted(names)
