"""Many turns with failures of every kind: each ends correctly and leaves no state."""

import asyncio
import math
import os
import random
import re
from dataclasses import replace

import pytest

from schemas.errors import TurnwireError
from schemas.events import Failed
from tests.kit.counting import Plan
from tests.kit.local import Local, Service, containers
from tests.kit.waiting import eventually

pytestmark = pytest.mark.slow

TURNS = int(os.environ.get("TURNWIRE_SOAK_TURNS", "3000"))
AT_ONCE = 60


BOUNDED = ("marks.data._plain",)
"""Caches with a fixed limit above what this test fills."""


def sizes(local: Local) -> dict[str, int]:
    """The size of every container of every service, the largest where there are several of a
    kind."""
    found: dict[str, int] = {}
    for service in local.services:
        if service.cut:
            continue
        if service.stage == "worker":
            for (
                tick
            ) in service.process.on_tick:  # as after the time for which finished turns linger
                tick(math.inf)
        pending = (".waiting", len(service.process.bus.waiting))
        for path, size in [*containers(service.core), pending]:
            if path.endswith(BOUNDED):
                continue
            name = service.stage + re.sub(r"\[.*\]", "[]", path)
            found[name] = max(found.get(name, 0), size)
    return found


async def play(local: Local, chance: random.Random) -> None:
    """One turn of some kind, to its end."""
    kind = chance.choices(["whole", "fail", "hang up", "leave early"], [70, 10, 10, 10])[0]
    plan = Plan(length=chance.randrange(1, 60), pace_s=chance.choice([0.0, 0.0, 0.001]))
    if kind == "fail":
        plan.fail_at = chance.randrange(plan.length)
    turn = local.turn(plan)
    if kind == "leave early":
        await asyncio.sleep(chance.random() * 0.05)
        turn.task.cancel()
        await asyncio.gather(turn.task, return_exceptions=True)
        return
    try:
        if kind == "hang up":
            opened = await turn.task
            await asyncio.sleep(chance.random() * 0.02)
            opened.cancel("hangup")
        elif isinstance(end := await turn.finished(), Failed):
            assert kind == "fail" or "lost" in end.error.message or "worker" in end.error.message, (
                end
            )
        else:
            await turn.whole(plan.length, switches=10)
    except TurnwireError as error:
        if not any(word in str(error) for word in ("CUDA", "lost", "within")):
            raise


async def play_many(local: Local, count: int, seed: int) -> None:
    chance, gate = random.Random(seed), asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with gate:
            await play(local, chance)

    await asyncio.gather(*(one() for _ in range(count)))


async def replace_some(local: Local, chance: random.Random, enough: asyncio.Event) -> None:
    """Kills or ends one process after the other; another takes its place."""
    while not enough.is_set():
        victim: Service = chance.choice([s for s in local.services if s.stage != "frontend"])
        await local.add(victim.stage)
        await local.completed()
        await (victim.leave() if chance.random() < 0.5 else victim.kill())
        local.services.remove(victim)


@pytest.mark.timeout(120 + TURNS // 20)
async def test_finished_turns_leave_no_state(local: Local) -> None:
    local.bus = replace(
        local.bus, recovery_s=10.0
    )  # for that long a process that left is remembered
    await local.start(2, 2, 2)
    await play_many(local, 100, 1)
    await local.idle()
    before, tasks = sizes(local), len(asyncio.all_tasks())
    enough = asyncio.Event()
    replacing = asyncio.create_task(replace_some(local, random.Random(2), enough))
    await play_many(local, TURNS, 3)
    enough.set()
    await replacing

    def grown() -> dict[str, int]:
        return {path: size for path, size in sizes(local).items() if size > before.get(path, 0) + 4}

    try:
        await eventually(lambda: not grown() and len(asyncio.all_tasks()) <= tasks + 8)
    except TimeoutError:
        pytest.fail(f"{grown()}, {len(asyncio.all_tasks())} tasks after {tasks}")
