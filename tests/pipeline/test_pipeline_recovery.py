"""Turns outlive a bus that hangs, and the only process of a stage: they wait for its successor, up
to a limit."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from schemas.control import Stage
from schemas.errors import Unavailable
from schemas.events import Failed
from schemas.frames import decode_generate
from services.frontend.http.auth import anyone
from tests.kit.counting import Plan, held
from tests.kit.local import INNER_STAGES, SILENCES, Local, Running, Service, Silence
from tests.kit.waiting import eventually


async def begun(local: Local, count: int = 3) -> tuple[list[Plan], list[Running]]:
    """Turns of which half is shown."""
    plans = [held(30) for _ in range(count)]
    turns = [local.turn(plan) for plan in plans]
    for turn in turns:
        await turn.sink.words_at_least(20)
    return plans, turns


def go(plans: list[Plan]) -> None:
    for plan in plans:
        plan.go.set()


async def lost(local: Local, stage: Stage) -> None:
    """Kills the only process of a stage; the others then count it among the dead."""
    (gone,) = local.of(stage)
    await gone.kill()
    others = [service for service in local.services if service.alive]
    await eventually(lambda: not any(service.peer(gone) for service in others))


def fails(turn: Running, sentence: str) -> Callable[[], bool]:
    return lambda: isinstance(turn.sink.end, Failed) and sentence in turn.sink.end.error.message


async def test_a_turn_in_preparation_waits_for_another_preprocessor(local: Local) -> None:
    await local.start()
    (preprocessor,) = local.of("preprocessor")
    requests = preprocessor.lose(".gen.", 1000)
    turn = local.turn()
    await eventually(lambda: bool(requests))
    await lost(local, "preprocessor")
    await local.add("preprocessor")
    await turn.whole(40)


@pytest.mark.parametrize("stage", ["worker", "parser", "frontend"])
@pytest.mark.parametrize("silence", SILENCES)
async def test_turns_outlive_the_silence_of_the_only_process(
    local: Local, stage: str, silence: Silence
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
    go(plans)
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
    await eventually(fails(turn, f"the {stage} "))
    await eventually(fails(turn, "within 1 s"))
    assert [type(event) for event in turn.sink.events].count(Failed) == 1
    assert local.gateway.running == 0


async def test_a_turn_that_kills_its_workers_is_given_up(local: Local) -> None:
    await local.start()
    (turn,) = (local.turn(held(20)),)
    await turn.sink.words_at_least(10)
    for _ in range(3):
        (worker,) = local.of("worker")
        await eventually(lambda worker=worker: worker.engine.has(turn.id))  # type: ignore[misc]
        await lost(local, "worker")
        await local.add("worker")
    end = await turn.finished()
    assert isinstance(end, Failed)


async def test_a_turn_that_gets_further_outlives_any_number_of_workers(local: Local) -> None:
    await local.start()
    turn = local.turn(Plan(length=600, pace_s=0.02))
    for words in (20, 60, 100, 140, 180):
        await turn.sink.words_at_least(words)
        await local.worker_of(turn).kill()
        await local.add("worker")
    end = await turn.whole(600, switches=5)
    assert end.usage.output == 605


# -- new requests
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", INNER_STAGES)
async def test_a_new_turn_waits_for_a_stage_that_was_there(local: Local, stage: Stage) -> None:
    await local.start()
    await lost(local, stage)
    turn = local.turn(Plan(length=10))
    await asyncio.sleep(2 * local.bus.dead_after_s)
    assert not turn.task.done()
    assert [card.name for card in local.frontend.catalog.models()] == [local.model.name]
    await local.add(stage)
    await turn.whole(10)


async def started(local: Local, *stages: Stage, wait_s: float) -> Service:
    for stage in stages:
        await local.add(stage)
    service = await local.add("frontend", wait_s=wait_s)
    await local.completed()
    return service


@pytest.mark.parametrize("stage", INNER_STAGES)
async def test_a_new_turn_is_refused_when_its_wait_is_over(local: Local, stage: Stage) -> None:
    await started(local, *INNER_STAGES, wait_s=0.5)
    await lost(local, stage)
    with pytest.raises(Unavailable, match=f"no {stage} serves this model") as refusal:
        await local.turn().task
    assert refusal.value.info.retry_after_s
    assert local.gateway.running == 0


async def test_a_new_turn_is_refused_when_the_bus_hangs_for_too_long(local: Local) -> None:
    await started(local, *INNER_STAGES, wait_s=3.0)
    local.nats.pause()
    try:
        turn = local.turn()
        with pytest.raises(Unavailable) as refusal:
            await turn.task
        with pytest.raises(Unavailable):
            await local.admission.count(turn.conversation, anyone())
    finally:
        local.nats.resume()
    assert refusal.value.info.retry_after_s
    assert local.gateway.running == 0
    await local.completed()


async def test_a_stage_that_was_never_there_is_refused_at_once(local: Local) -> None:
    await started(local, "worker", "preprocessor", wait_s=600.0)
    with pytest.raises(Unavailable, match="no parser serves this model"):
        await asyncio.wait_for(local.turn().task, 60)


async def test_work_of_a_client_that_left_while_the_bus_hung_is_dropped_before_it_costs(
    local: Local,
) -> None:
    local.bus = replace(local.bus, dead_after_s=5.0)
    await local.start()
    (frontend,), (preprocessor,), (worker,) = (
        local.of(s) for s in ("frontend", "preprocessor", "worker")
    )
    requests: list[str] = []
    frontend.watching.append(
        lambda subject, _: requests.append(subject) if ".turn." in subject else None
    )
    prepared: set[str] = set()

    def note(subject: str, data: bytes) -> None:
        if ".gen." in subject:
            prepared.add(decode_generate(data).turn)

    preprocessor.watching.append(note)
    local.nats.pause()
    try:
        await asyncio.sleep(
            1
        )  # a busy machine stops a process late; the frontend must not have noticed yet
        left = local.turn()
        await eventually(lambda: bool(requests))
        left.task.cancel()
        await eventually(lambda: preprocessor.process.cut_off and not frontend.turns)
    finally:
        local.nats.resume()
    after = local.turn(Plan(length=3))
    await after.whole(3)
    assert prepared == {after.id}
    assert [request.id.partition(".")[0] for request in worker.engine.seen] == [after.id]
