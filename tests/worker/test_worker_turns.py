"""From an engine's callbacks to the sinks."""

import pytest

from schemas.errors import ENGINE_DIED, EngineFailed, Invalid
from schemas.events import FinishReason
from services.worker.engine import Delta, EngineDied
from services.worker.engines.turns import OpenTurns, Turn
from tests.worker.listening import Listener


class Trial:
    """An engine's open turns, and what their sinks heard."""

    def __init__(self) -> None:
        self.turns = OpenTurns("trial")
        self.sinks: dict[str, Listener] = {}
        self.released: list[str] = []

    def open(self, turn_id: str) -> Turn:
        sink = Listener()
        turn = self.turns.open(turn_id, sink, lambda: self.released.append(turn_id))
        sink.opened = True
        self.sinks[turn_id] = sink
        return turn

    def ids(self, turn_id: str) -> list[list[int]]:
        return [delta.ids for delta in self.sinks[turn_id].deltas]


def test_deltas_come_in_order_and_the_engine_lets_go_before_the_end_is_heard() -> None:
    trial = Trial()
    turn = trial.open("a")
    trial.sinks["a"].put = lambda delta: heard.append((delta.finish, list(trial.released)))  # type: ignore[method-assign]
    heard: list[tuple[FinishReason | None, list[str]]] = []
    turn._put = trial.sinks["a"].put
    turn.put(Delta([1]))
    turn.put(Delta([2], finish=FinishReason.STOP))
    assert heard == [(None, []), (FinishReason.STOP, ["a"])]
    assert len(trial.turns) == 0


def test_nothing_comes_after_the_end() -> None:
    trial = Trial()
    turn = trial.open("a")
    turn.put(Delta(finish=FinishReason.LENGTH))
    turn.put(Delta([9]))
    turn.fail(EngineFailed("late"))
    turn.close()
    trial.turns.die("later still")
    assert trial.ids("a") == [[]]
    assert trial.sinks["a"].error is None
    assert trial.released == ["a"]


def test_nothing_comes_after_a_failure() -> None:
    trial = Trial()
    turn = trial.open("a")
    turn.put(Delta([1]))
    turn.fail(EngineFailed("broken"))
    turn.put(Delta([2]))
    turn.fail(EngineFailed("again"))
    assert trial.ids("a") == [[1]]
    assert str(trial.sinks["a"].error) == "broken"
    assert trial.released == ["a"]


def test_a_closed_turn_hears_nothing() -> None:
    trial = Trial()
    turn = trial.open("a")
    turn.close()
    turn.close()
    turn.put(Delta([1]))
    trial.turns.stop()
    assert trial.ids("a") == []
    assert trial.released == ["a"]


def test_death_reaches_all_and_is_for_good() -> None:
    trial = Trial()
    for name in "ab":
        trial.open(name)
    trial.turns.die("out of memory")
    trial.turns.die("something else")
    errors = [trial.sinks[name].error for name in "ab"]
    assert all(isinstance(error, EngineDied) for error in errors)
    assert [str(error) for error in errors] == ["the trial engine died: out of memory"] * 2
    assert errors[0] is not errors[1]
    assert errors[0] is not None
    assert errors[0].info.code == ENGINE_DIED
    with pytest.raises(EngineDied):
        trial.open("c")


def test_an_id_can_be_used_again_once_it_is_closed() -> None:
    trial = Trial()
    first = trial.open("a")
    with pytest.raises(Invalid, match="'a'"):
        trial.open("a")
    first.close()
    second = trial.open("a")
    first.close()
    assert len(trial.turns) == 1
    assert not second.ended


def test_stop_ends_turns_and_opens_no_more() -> None:
    trial = Trial()
    turn = trial.open("a")
    turn.put(Delta([1]))
    trial.turns.stop()
    assert [delta.finish for delta in trial.sinks["a"].deltas] == [None, FinishReason.CANCELLED]
    with pytest.raises(EngineDied, match="stopped"):
        trial.open("b")
