"""The findings of the doctor on the bus."""

import asyncio
import time

from schemas import subjects
from schemas.control import Heartbeat, Load, ModelCard, ToolWeight
from services.cli.doctor.bus import check_bus
from services.runtime.config.service import BusConfig
from tests.kit.nats import NatsServer
from tests.kit.processes import MakeProcess, Reported


async def test_processes_on_the_bus_are_found(
    own_nats: NatsServer, make_process: MakeProcess
) -> None:
    """On a server of its own, since other tests have processes on the shared one."""
    worker = await make_process("worker", "w", url=own_nats.url)
    worker.serve(Reported(ModelCard("m", max_model_len=4096), load=Load(running=1, slots=8)))
    makers = [
        Heartbeat("preprocessor", f"p{tokens}", load=Load(tools=ToolWeight(tokens, 66_000, client)))
        for tokens, client in ((900, "pi"), (48_000, "opencode/1.18"))
    ]
    times = {"early": -600.0, "late": 600.0, "near": 0.5}
    check = asyncio.ensure_future(check_bus(BusConfig(nats_url=own_nats.url), True, 1.2))
    while not check.done():
        worker.heartbeats.send()
        worker.bus.publish("tw.v3.beat.worker.worker-1", b"of another form")
        for name, off_s in times.items():
            heartbeat = Heartbeat("frontend", name, time=time.time() + off_s)
            worker.publish(subjects.heartbeat("frontend", name), heartbeat)
        for maker in makers:
            worker.publish(subjects.heartbeat("preprocessor", maker.id), maker)
        await asyncio.sleep(0.1)
    found = {finding.about: finding for finding in await check}
    assert found["bus"].status == "ok"
    assert "8,388,608 bytes a message" in found["bus"].text
    text = f"{worker.id} m (4096), 1 running of 8"
    assert (found["worker"].status, found["worker"].text) == ("ok", text)
    assert (found["parser"].status, found["parser"].text) == ("warn", "none")
    clocks, protocols = found["clocks"], found["protocols"]
    assert (clocks.status, protocols.status) == ("fail", "warn")
    assert "frontend early by +600 s" in clocks.text
    assert (found["store"].status, found["store"].text[-10:]) == ("note", "is missing")
    assert "frontend late by -600 s" in clocks.text
    assert "near" not in clocks.text
    assert "worker worker-1 (tw.v3)" in protocols.text
    tools = found["tools"]
    assert tools.status == "note"
    assert tools.text.startswith("48,000 of 66,000 tokens")
    assert "(opencode/1.18): --defer-tools" in tools.text
