"""From an engine's callbacks to the iterators."""

import asyncio

import pytest

from schemas.errors import ENGINE_DIED, EngineFailed, Invalid
from schemas.events import FinishReason
from services.worker.engine import Delta, EngineDied
from services.worker.engines.turns import OpenTurns


async def test_deltas_come_out_in_order_and_wake_the_reader() -> None:
    turn = OpenTurns("trial").open("a")
    reader = asyncio.create_task(turn.get())
    await asyncio.sleep(0)
    turn.put(Delta([1]))
    turn.put(Delta([2], finish=FinishReason.STOP))
    assert (await reader).ids == [1]
    assert (await turn.get()).ids == [2]


async def test_nothing_comes_after_the_end() -> None:
    turns = OpenTurns("trial")
    turn = turns.open("a")
    turn.put(Delta(finish=FinishReason.LENGTH))
    turn.put(Delta([9]))
    turn.fail(lambda: EngineFailed("late"))
    turns.die("later still")
    assert (await turn.get()).finish is FinishReason.LENGTH
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(turn.get(), 0.01)


async def test_what_came_before_a_failure_still_comes_out() -> None:
    turn = OpenTurns("trial").open("a")
    turn.put(Delta([1]))
    turn.fail(lambda: EngineFailed("broken"))
    assert (await turn.get()).ids == [1]
    with pytest.raises(EngineFailed, match="broken"):
        await turn.get()


async def test_a_reader_that_was_cancelled_leaves_the_turn_usable() -> None:
    turn = OpenTurns("trial").open("a")
    reader = asyncio.create_task(turn.get())
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait([reader])
    turn.put(Delta([1]))
    assert (await turn.get()).ids == [1]


async def test_death_reaches_all_and_is_for_good() -> None:
    turns = OpenTurns("trial")
    open_turns = [turns.open(name) for name in "ab"]
    turns.die("out of memory")
    turns.die("something else")
    errors = []
    for turn in open_turns:
        with pytest.raises(EngineDied, match="the trial engine died: out of memory") as caught:
            await turn.get()
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert errors[0].info.code == ENGINE_DIED
    with pytest.raises(EngineDied):
        turns.open("c")


async def test_an_id_can_be_used_again_once_it_is_closed() -> None:
    turns = OpenTurns("trial")
    first = turns.open("a")
    with pytest.raises(Invalid, match="'a'"):
        turns.open("a")
    turns.close(first)
    second = turns.open("a")
    turns.close(first)
    assert len(turns) == 1
    assert second.id == "a"


async def test_stop_ends_turns_and_opens_no_more() -> None:
    turns = OpenTurns("trial")
    turn = turns.open("a")
    turn.put(Delta([1]))
    turns.stop()
    assert [(await turn.get()).finish for _ in range(2)] == [None, FinishReason.CANCELLED]
    with pytest.raises(EngineDied, match="stopped"):
        turns.open("b")
