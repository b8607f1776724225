"""What every process does: announces itself, sends and receives heartbeats, drains, leaves."""

import asyncio
from typing import Any

import pytest

from schemas.control import Heartbeat
from schemas.errors import EngineFailed
from services.runtime.presence.heartbeats import CHANGE_DELAY_S, Service
from services.runtime.process import Process
from tests.kit.nats import NatsServer
from tests.kit.processes import MakeProcess
from tests.kit.waiting import LIMIT_S, eventually


class Endless(Service):
    """A service with a turn that does not end."""

    async def drain(self) -> None:
        await asyncio.Event().wait()


async def ready(process: Process) -> None:
    """Waits until a process has announced itself: its first heartbeats are those of a draining
    process."""
    await eventually(lambda: process.draining)
    await eventually(lambda: not process.draining)


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


@pytest.mark.parametrize("how", ["done", "grace", "signal"])
async def test_a_drain_ends_when_it_is_done_when_the_grace_is_over_or_at_a_second_signal(
    make_process: MakeProcess, how: str
) -> None:
    process = await make_process("worker", "w", drain_s=0.2 if how == "grace" else 30.0)
    last_turn, draining, cut = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class LastTurn(Service):
        async def drain(self) -> None:
            draining.set()
            try:
                await last_turn.wait()
            except asyncio.CancelledError:
                cut.set()
                raise

    process.serve(LastTurn())
    running = asyncio.create_task(process.run())
    await ready(process)
    process.stop()
    await draining.wait()
    if how == "done":
        last_turn.set()
    elif how == "signal":
        process.stop()
    await asyncio.wait_for(running, LIMIT_S)
    assert cut.is_set() == (how != "done"), "what drains can still end its turns"


@pytest.mark.parametrize("place", ["stop", "handler", "callback"])
async def test_failure_and_lack_of_memory_end_the_process_without_a_drain(
    place: str, make_process: MakeProcess
) -> None:
    process = await make_process("worker", "w")

    def fail(*_: object) -> None:
        raise MemoryError

    await process.subscribe("too.large", fail)
    process.serve(Endless())
    running = asyncio.create_task(process.run())
    await ready(process)
    if place == "stop":
        process.stop("the engine died")
    elif place == "handler":
        assert process.bus.publish("too.large", b"x")
    else:
        asyncio.get_running_loop().call_soon(fail)
    reason = "the engine died" if place == "stop" else "out of memory"
    with pytest.raises(EngineFailed, match=reason):
        await asyncio.wait_for(running, LIMIT_S)


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


async def test_a_probe_finds_out_whether_anybody_is_subscribed(
    own_nats: NatsServer, make_process: MakeProcess
) -> None:
    process = await make_process("worker", "w", url=own_nats.url)
    deaf = await make_process("frontend", "f", url=own_nats.url)
    gone: list[str] = []
    await deaf.subscribe("here", lambda delivery: None)
    await deaf.bus.flush()
    process.probe("here", Heartbeat("worker", "w"), lambda: gone.append("here"))
    process.probe("away", Heartbeat("worker", "w"), lambda: gone.append("away"))
    await eventually(lambda: gone == ["away"])
    own_nats.kill()
    await eventually(lambda: process.cut_off)
    process.probe("away", Heartbeat("worker", "w"), lambda: gone.append("unknown"))
    assert gone == ["away"]
