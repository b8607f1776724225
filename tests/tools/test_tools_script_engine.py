"""The script engine: its output, from files and directives, and what a request can make it do."""

import asyncio
from typing import Any

import pytest

from services.worker.engine import EngineDied
from tests.kit.waiting import LIMIT_S, eventually
from turnwire_tools.script.prefills import PrefillQueue


async def test_a_request_may_kill_the_engine(stage: Any) -> None:
    trial = await stage()
    other = asyncio.create_task(trial.play("[[say]]a[[silence]][[/say]]"))
    await eventually(lambda: trial.engine.load().running == 1)
    with pytest.raises(EngineDied, match="at lunch"):
        await trial.play("[[say]]a[[die at lunch]][[/say]]")
    with pytest.raises(EngineDied):
        await asyncio.wait_for(other, LIMIT_S)
    assert not trial.engine.healthy()


LONG_S = 10_000.0


async def test_prompts_are_computed_in_order_and_those_of_ended_turns_take_no_time() -> None:
    done: list[str] = []
    prefills = PrefillQueue(done.append)
    for name in "abc":
        prefills.add(name, LONG_S)
    prefills.add("d", 0.0)
    for name in "bac":
        prefills.remove(name)
    await eventually(lambda: done == ["d"])
    for name in "efg":
        prefills.add(name, 0.0)
    await eventually(lambda: done == [*"defg"])
