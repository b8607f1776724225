"""A process that was taken for dead: what others have taken over stays theirs, and it comes back
clean."""

from dataclasses import replace
from functools import partial

import pytest

from schemas.events import Failed
from tests.kit.counting import Plan, held
from tests.kit.local import INNER_STAGES, SILENCES, Local, Silence, is_gone, other, owes_nothing
from tests.kit.waiting import eventually


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


async def test_sequence_numbers_start_again_for_a_receiver_that_was_given_up(local: Local) -> None:
    """The old sequence number of a receiver that was taken for dead must not hold back credit."""
    await local.start(1, 1)
    (worker,), (parser,), (frontend,) = (local.of(s) for s in ("worker", "parser", "frontend"))
    turns = [local.turn(Plan(length=100)) for _ in range(30)]
    for turn in turns:
        await turn.whole(100)
    for silenced, sender in ((parser, worker), (frontend, parser)):
        silenced.silence("cut")
        await eventually(partial(is_gone, silenced, sender))
        silenced.speak()
        await local.completed()
        await local.turn(Plan(length=30)).whole(30)
        await eventually(partial(owes_nothing, sender))


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
