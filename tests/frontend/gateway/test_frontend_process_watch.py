"""Processes that leave fail the attempts of their own model only."""

import asyncio
from typing import Literal

import pytest

from schemas.control import ModelCard
from tests.kit.clock import LoopClock
from tests.kit.gateway import Stage
from tests.kit.process import announce


@pytest.mark.parametrize("left", ["worker", "parser"])
async def test_process_of_another_model_that_leaves_fails_no_attempt(
    stage: Stage, loop_clock: LoopClock, left: Literal["worker", "parser"]
) -> None:
    stage.serves("other")
    _, opening = await stage.begin("a")
    for name, process in (("other", "other"), ("m", "1")):
        card = ModelCard(name)
        announce(stage.process.registry, card, process, stages=(left,), leaving=True)
        announce(stage.process.registry, ModelCard("m"), "2")
        loop_clock.passed += 10.0
        for _ in range(5):
            await asyncio.sleep(0)
        assert stage.gateway.table.by_id["a"].failures == (name == "m")
    opening.cancel()
    await asyncio.wait([opening])
