"""Heartbeats: a process waits until it knows the others, and finds out that it is cut off."""

import asyncio
from typing import Any

from schemas.control import Heartbeat
from services.runtime.presence.heartbeats import CHANGE_DELAY_S
from services.runtime.process import Process
from tests.kit.nats import NatsServer
from tests.kit.processes import MakeProcess, ready
from tests.kit.waiting import LIMIT_S, eventually


async def test_a_process_takes_work_only_after_it_knows_the_others(
    own_nats: NatsServer, make_process: MakeProcess
) -> None:
    watcher = await make_process("frontend", "f", url=own_nats.url)
    newcomer = await make_process("worker", "w", url=own_nats.url)
    heartbeats: list[Heartbeat] = []
    watcher.registry.on_heartbeat.append(heartbeats.append)
    watcher.registry.on_leave.append(heartbeats.append)
    knew: list[bool] = []
    watcher.registry.on_heartbeat.append(
        lambda b: knew.append(newcomer.registry.get("frontend", watcher.id) is not None)
    )
    watching = asyncio.create_task(watcher.run())
    await ready(watcher)
    await asyncio.sleep(2 * CHANGE_DELAY_S)  # one that is not ready would have answered by now
    running = asyncio.create_task(newcomer.run())
    await eventually(lambda: any(not heartbeat.draining for heartbeat in heartbeats))
    assert heartbeats[0].draining
    assert knew[-1]
    newcomer.stop()
    await running
    await eventually(lambda: heartbeats[-1].leaving)
    assert heartbeats[-2].draining
    assert watcher.registry.get("worker", newcomer.id) is None
    watcher.stop()
    await watching


async def test_while_the_bus_hangs_a_process_is_cut_off_and_takes_no_other_for_dead(
    own_nats: NatsServer, make_process: MakeProcess
) -> None:
    dead_after_s = 0.3
    bus: Any = {"url": own_nats.url, "beat_interval_s": 0.05, "dead_after_s": dead_after_s}
    one, other = await make_process("worker", "p", **bus), await make_process("parser", "p", **bus)
    lost: list[str] = []
    attached: list[Process] = []
    for process in (one, other):
        process.registry.on_leave.append(lambda b: lost.append(b.id))
        process.on_attached.append(lambda process=process: attached.append(process))  # type: ignore[misc]
    running = [asyncio.create_task(process.run()) for process in (one, other)]
    await asyncio.gather(ready(one), ready(other))
    await eventually(lambda: not one.cut_off)
    own_nats.pause()
    await eventually(lambda: one.cut_off and other.cut_off)
    waiting = asyncio.create_task(one.wait_until_attached())
    await asyncio.sleep(3 * dead_after_s)
    assert not waiting.done()
    own_nats.resume()
    await asyncio.wait_for(waiting, LIMIT_S)
    await eventually(lambda: not one.cut_off and not other.cut_off)
    assert {process.stage for process in attached} == {"worker", "parser"}
    assert lost == []
    one.stop()
    await running[0]
    await eventually(lambda: lost == [one.id])
    other.stop()
    await running[1]
