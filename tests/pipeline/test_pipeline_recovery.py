"""Turns outlive a bus that hangs, and the only process of a stage: they wait for its successor, up
to a limit. A process that was taken for dead comes back clean."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from schemas.control import INNER_STAGES, Stage
from schemas.errors import Unavailable
from schemas.events import Failed
from services.frontend.http.auth import anyone
from tests.kit.counting import Plan, held
from tests.kit.local import SILENCES, Local, Running, Silence, other, owes_nothing
from tests.kit.waiting import eventually


async def begun(local: Local, count: int = 3) -> tuple[list[Plan], list[Running]]:
    """Turns of which half is shown."""
    plans = [held(30) for _ in range(count)]
    turns = [local.turn(plan) for plan in plans]
    for turn in turns:
        await turn.sink.words_at_least(20)
    return plans, turns


async def lost(local: Local, stage: Stage) -> None:
    """Kills the only process of a stage; the others then count it among the dead."""
    (gone,) = local.of(stage)
    await gone.kill()
    others = [service for service in local.services if service.alive]
    await eventually(lambda: not any(service.peer(gone) for service in others))


@pytest.mark.parametrize(
    ("stage", "silence"),
    [("worker", "cut"), ("worker", "mute"), ("parser", "frozen"), ("frontend", "frozen")],
)
async def test_turns_outlive_the_silence_of_the_only_process(
    local: Local, stage: Stage, silence: Silence
) -> None:
    """The process is suspended, or its messages are lost."""
    await local.start()
    plans, turns = await begun(local)
    (silent,) = local.of(stage)
    others = [service for service in local.services if service is not silent]
    silent.silence(silence)
    await eventually(lambda: not any(service.peer(silent) for service in others))
    assert silent.process.cut_off
    silent.speak()
    await local.completed()
    for plan in plans:
        plan.go.set()
    for turn in turns:
        await turn.whole(60)
    await local.idle()


@pytest.mark.parametrize("stage", ["worker", "parser"])
async def test_when_nothing_takes_over_in_time_the_error_names_what_was_lost(
    local: Local, stage: Stage
) -> None:
    local.bus = replace(local.bus, recovery_s=1.0)
    await local.start()
    _, (turn,) = await begun(local, 1)
    await lost(local, stage)
    end = await turn.finished()
    assert isinstance(end, Failed)
    assert f"the {stage} " in end.error.message
    assert "within 1 s" in end.error.message
    assert local.gateway.running == 0


async def test_a_turn_that_gets_further_outlives_any_number_of_workers(local: Local) -> None:
    await local.start()
    turn = local.turn(Plan(length=300, pace_s=0.02))
    for words in (20, 60, 100, 140, 180):
        await turn.sink.words_at_least(words)
        await local.worker_of(turn).kill()
        await local.add("worker")
    end = await turn.whole(300, switches=5)
    assert end.usage.output == 305


async def test_a_turn_that_kills_its_workers_is_given_up(local: Local) -> None:
    await local.start()
    turn = local.turn(held(20))
    await turn.sink.words_at_least(10)
    for _ in range(3):
        await local.begun(turn)
        await lost(local, "worker")
        await local.add("worker")
    assert isinstance(await turn.finished(), Failed)


async def start_impatient(local: Local) -> None:
    """One of each stage; new turns wait for a short time only."""
    for stage in INNER_STAGES:
        await local.add(stage)
    await local.add("frontend", wait_s=4.0)
    await local.completed()


@pytest.mark.parametrize("stage", INNER_STAGES)
async def test_a_new_turn_waits_for_a_stage_that_was_there(local: Local, stage: Stage) -> None:
    await start_impatient(local)
    await lost(local, stage)
    turn = local.turn(Plan(length=10))
    await asyncio.sleep(2 * local.bus.dead_after_s)
    assert not turn.task.done()
    assert [card.name for card in local.frontend.catalog.models()] == [local.model.name]
    await local.add(stage)
    await turn.whole(10)
    await lost(local, stage)
    with pytest.raises(Unavailable, match=f"no {stage} serves this model") as refusal:
        await local.turn().task
    assert refusal.value.info.retry_after_s
    assert local.gateway.running == 0


async def test_a_new_turn_is_refused_when_the_bus_hangs_for_too_long(local: Local) -> None:
    await start_impatient(local)
    local.nats.pause()
    turn = local.turn()
    with pytest.raises(Unavailable) as refusal:
        await turn.task
    with pytest.raises(Unavailable):
        await local.turns.count(turn.conversation, anyone())
    local.nats.resume()
    assert refusal.value.info.retry_after_s
    assert local.gateway.running == 0
    await local.completed()


@pytest.mark.parametrize("silence", SILENCES)
async def test_a_parser_that_was_given_up_comes_back_clean(local: Local, silence: Silence) -> None:
    await local.start(1, 2)
    plans = [held(20) for _ in range(6)]
    turns = [local.turn(plan) for plan in plans]
    for turn in turns:
        await turn.sink.words_at_least(10)
    (worker,) = local.of("worker")
    silenced = local.of("parser")[0]
    successor = other(local, silenced)
    assert silenced.turns
    silenced.silence(silence)
    await eventually(lambda: successor.turns == len(turns))
    silenced.speak()
    await eventually(lambda: worker.peer(silenced))
    await eventually(lambda: not silenced.turns)
    for plan in plans:
        plan.go.set()
    for turn in turns:
        await turn.whole(60)
    await successor.leave()
    again = [local.turn(Plan(length=n)) for n in range(20)]
    for n, turn in enumerate(again):
        await turn.whole(n)
    await eventually(partial(owes_nothing, worker))


async def test_a_frontend_that_was_given_up_ends_its_turns(local: Local) -> None:
    """It comes back too late. A turn that no process has any more ends with one clear error. A turn
    that the worker gave up before the parser did is resumed, and a turn that has shown nothing
    starts again."""
    patient, local.bus = local.bus, replace(local.bus, recovery_s=0.0)
    for stage in INNER_STAGES:
        await local.add(stage)
    local.bus = patient
    await local.add("frontend")
    await local.completed()
    (worker,), (parser,), (frontend,) = (local.of(s) for s in ("worker", "parser", "frontend"))
    plans = held(20), held(0)
    shown, silent = (local.turn(plan) for plan in plans)
    await shown.sink.words_at_least(10)
    await silent.task
    frontend.silence("mute")
    await eventually(lambda: not worker.turns and not parser.turns)
    frontend.speak()
    for plan in plans:
        plan.go.set()
    end = await shown.finished()
    if isinstance(end, Failed):
        assert "cut off" in end.error.message
    else:
        await shown.whole(60)
    await silent.whole(60)
    await eventually(lambda: not worker.turns)
