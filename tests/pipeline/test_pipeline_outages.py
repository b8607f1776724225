"""One process of each stage, with the default settings of the bus, under load: outages of many
seconds cost no word."""

import asyncio
from dataclasses import replace

import pytest

from schemas.control import Stage
from services.runtime.config import BusConfig
from tests.kit.counting import Plan
from tests.kit.local import INNER_STAGES, Local, Running

WORDS = 400
DEFAULTS = BusConfig()


async def loaded(local: Local) -> list[Running]:
    """Sixteen turns, which decode for twenty seconds."""
    local.bus = replace(
        local.bus,
        beat_interval_s=DEFAULTS.beat_interval_s,
        dead_after_s=DEFAULTS.dead_after_s,
    )
    await local.start()
    turns = [local.turn(Plan(length=WORDS, pace_s=0.05)) for _ in range(16)]
    for turn in turns:
        await turn.sink.words_at_least(40)
    return turns


async def goes_on(local: Local, turns: list[Running], switches: int = 0) -> None:
    """Every turn has ended well, with each word once and in its place, and a new one does."""
    for turn in turns:
        await turn.whole(WORDS, switches=switches)
    await local.turn(Plan(length=5)).whole(5)
    await local.idle()


@pytest.mark.parametrize("seconds", [8, 35])
async def test_turns_survive_while_the_bus_hangs(local: Local, seconds: int) -> None:
    """After 35 s every process has connected again. A new turn waits for up to 30 s."""
    turns = await loaded(local)
    local.nats.pause()
    late = [local.turn(Plan(length=5))] if seconds < 30 else []
    await asyncio.sleep(seconds)
    local.nats.resume()
    for turn in late:
        await turn.whole(5)
    await goes_on(local, turns)


@pytest.mark.parametrize("stage", INNER_STAGES)
async def test_a_process_can_be_stopped_while_there_is_no_bus(local: Local, stage: Stage) -> None:
    """Within its grace, for which a worker with the end of a turn waits."""
    turns = await loaded(local)
    (leaving,) = local.of(stage)
    local.nats.kill()
    async with asyncio.timeout(local.drain_s + 1):
        await leaving.leave()
    local.services.remove(leaving)
    local.nats.start()
    await local.add(stage)
    await goes_on(local, turns, switches=1 if stage == "worker" else 0)
