"""What every process does: announces itself, beats, hears of others, drains, leaves."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from schemas.control import Beat
from schemas.errors import EngineFailed
from services.runtime.process import Process
from tests.conftest import MakeProcess, NatsServer, eventually

Drain = Callable[[], Awaitable[None]]


async def at_once() -> None:
    """There is nothing to drain."""


def keep(beats: list[Beat], process: Process) -> None:
    process.registry.on_beat(beats.append)
    process.registry.on_leave(beats.append)


async def test_a_process_takes_work_only_after_it_knows_the_others(
    make_process: MakeProcess, own_nats: NatsServer
) -> None:
    watcher = await make_process("frontend", "f", url=own_nats.url)
    newcomer = await make_process("worker", "w", url=own_nats.url)
    beats: list[Beat] = []
    keep(beats, watcher)
    knew: list[bool] = []
    watcher.registry.on_beat(lambda b: knew.append(newcomer.registry.get("frontend", watcher.id) is not None))
    running = asyncio.create_task(newcomer.run(at_once))
    await eventually(lambda: any(not beat.draining for beat in beats))
    assert beats[0].draining
    assert knew[-1]
    newcomer.stop()
    await running
    await eventually(lambda: beats[-1].leaving)
    assert beats[-2].draining
    assert watcher.registry.get("worker", newcomer.id) is None


async def test_a_change_is_told_soon_and_many_at_once(make_process: MakeProcess, own_nats: NatsServer) -> None:
    watcher = await make_process("frontend", "f", url=own_nats.url)
    process = await make_process("worker", "w", url=own_nats.url, beat_interval_s=30.0, dead_after_s=60.0)
    running = asyncio.create_task(process.run(at_once))
    beats: list[Beat] = []
    await eventually(lambda: watcher.registry.get("worker", process.id) is not None)
    keep(beats, watcher)
    await eventually(lambda: any(not beat.draining for beat in beats))
    beats.clear()
    for _ in range(100):
        process.poke()
    await eventually(lambda: bool(beats))
    assert len(beats) == 1
    process.stop()
    await running


@pytest.mark.parametrize("how", ["done", "grace", "signal"])
async def test_a_drain_ends_when_it_is_done_when_the_grace_is_over_or_when_told_again(
    make_process: MakeProcess, how: str
) -> None:
    process = await make_process("worker", "w", drain_s=0.2 if how == "grace" else 30.0)
    last_turn, cut = asyncio.Event(), asyncio.Event()

    async def drain() -> None:
        try:
            await last_turn.wait()
        except asyncio.CancelledError:
            cut.set()
            raise

    running = asyncio.create_task(process.run(drain))
    await asyncio.sleep(0.2)
    process.stop()
    await eventually(lambda: process.draining)
    if how == "done":
        last_turn.set()
    elif how == "signal":
        await asyncio.sleep(0.05)
        process.stop()
    await asyncio.wait_for(running, 5)
    assert cut.is_set() == (how != "done"), "whoever drains has a chance to tell"


async def test_a_failure_ends_the_process_without_a_drain(make_process: MakeProcess) -> None:
    process = await make_process("worker", "w")
    running = asyncio.create_task(process.run(lambda: asyncio.sleep(60)))
    await asyncio.sleep(0.05)
    process.stop("the engine died")
    with pytest.raises(EngineFailed, match="the engine died"):
        await asyncio.wait_for(running, 5)


async def test_work_that_fails_or_never_begins_harms_nobody(make_process: MakeProcess) -> None:
    process = await make_process("worker", "w")

    async def fail() -> None:
        raise ValueError

    failed, never = process.spawn(fail(), "fail"), process.spawn(fail(), "never")
    never.cancel()
    await asyncio.gather(failed, never, return_exceptions=True)
    assert failed.exception() is None
    assert never.cancelled()
    await eventually(lambda: not process._tasks)


async def test_a_heart_goes_on_beating_when_a_listener_fails(make_process: MakeProcess) -> None:
    watcher, process = await make_process("frontend", "f"), await make_process("worker", "w", beat_interval_s=0.05)
    process.on_tick.append(lambda _now: 1 / 0)  # type: ignore[arg-type, return-value]
    beats: list[Beat] = []
    keep(beats, watcher)
    running = asyncio.create_task(process.run(at_once))
    await eventually(lambda: len(beats) > 5)
    process.stop()
    await running
