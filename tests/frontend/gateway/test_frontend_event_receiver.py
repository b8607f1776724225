"""Event frames: every turn gets its own events, once and in order."""

import asyncio

import pytest
import structlog

from schemas.control import Replay
from schemas.events import BlockStop, Delta, Finish, FinishReason, Usage
from schemas.frames import EventEntry
from schemas.token_ids import pack_ids
from services.frontend.gateway import turn_table
from tests.kit.gateway import Stage

FINISH = Finish(FinishReason.STOP, 1, Usage(prompt=1, output=1))


async def test_each_turn_gets_its_own_deltas_in_order(stage: Stage) -> None:
    one, two = await stage.open("a"), await stage.open("b")
    for at, letter in enumerate("hello"):
        stage.send(
            EventEntry("a", 1, [Delta(0, at, letter)]),
            EventEntry("b", 1, [Delta(0, at, letter.upper())]),
        )
    assert (one.text, two.text) == ("hello", "HELLO")
    stage.event("a", BlockStop(0, length=5), FINISH)
    assert one.end == FINISH
    assert stage.gateway.running == 1


async def test_sink_is_opened_once_and_first(stage: Stage) -> None:
    sink = await stage.open("a")
    assert [prepared.worker for prepared in sink.prepared] == ["worker-1"]
    stage.interrupt("a")
    again = await stage.request(2)
    assert (again.attempt, again.resume, again.avoid) == (2, pack_ids([7]), ["worker-1"])
    stage.prepare("a", Delta(0, 0, "x"), attempt=2, worker="2")
    assert sink.text == "x"
    assert len(sink.prepared) == 1
    await asyncio.gather(*stage.process.tasks)


async def test_each_character_is_passed_once_and_a_gap_is_replayed(stage: Stage) -> None:
    sink = await stage.open("a")
    for at, text in ((0, "hel"), (0, "hel"), (1, "ello"), (5, "!")):
        stage.event("a", Delta(0, at, text))
    assert sink.text == "hello!"
    assert stage.process.published_of(Replay) == []
    stage.event("a", Delta(0, 8, "o"))
    stage.event("a", Delta(1, 2, "x"))
    assert sink.text == "hello!"
    (replay,) = stage.process.published_of(Replay)
    (position,) = replay.streams
    assert (position.turn, position.block, position.offset) == ("a", 0, 6)
    stage.event("a", Delta(0, 6, " so"), BlockStop(0, length=9))
    stage.event("a", Delta(0, 9, "late"))
    stage.event("a")
    assert sink.text == "hello! so"


async def test_events_of_another_attempt_are_ignored_and_cancelled_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        stage.event("gone", Delta(0, 0, "x"))
    assert stage.cancels() == [("gone", 1)], "not at once"
    monkeypatch.setattr(turn_table, "CANCEL_AGAIN_S", 0.0)
    stage = Stage()
    await stage.gateway.start()
    sink = await stage.open("a")
    stage.interrupt("a")
    await stage.request(2)
    stage.event("a", Delta(0, 0, "old"))
    assert sink.text == ""
    assert stage.cancels() == [("a", 1), ("a", 1)]


async def test_failure_of_one_turn_does_not_affect_the_others(stage: Stage) -> None:
    one, two = await stage.open("a"), await stage.open("b")
    one.broken = ZeroDivisionError()
    with structlog.testing.capture_logs():
        stage.send(EventEntry("a", 1, [Delta(0, 0, "x")]), EventEntry("b", 1, [Delta(0, 0, "y")]))
    assert two.text == "y"
    assert stage.gateway.running == 1
    assert one.kinds == ["BlockStart", "Failed"]
