"""Open turns of engines: one end each, and nothing after it."""

import pytest

from schemas.errors import EngineFailed, Invalid
from schemas.events import FinishReason
from services.worker.engine import EngineDelta
from services.worker.engines.open_turns import OpenTurns
from tests.kit.listening import Listener


def test_deltas_come_in_order_and_the_engine_is_done_before_the_end_arrives() -> None:
    heard: list[tuple[FinishReason | None, list[str]]] = []
    turns, released = OpenTurns("trial"), list[str]()

    class Recorder(Listener):
        def put(self, delta: EngineDelta) -> None:
            heard.append((delta.finish, list(released)))

    turn = turns.open("a", Recorder(), lambda: released.append("a"))
    with pytest.raises(Invalid, match="'a'"):
        turns.open("a", Listener(), lambda: None)
    turn.put(EngineDelta([1]))
    turn.put(EngineDelta([2], finish=FinishReason.STOP))
    second = turns.open("a", Listener(), lambda: None)  # the id is free again
    turn.put(EngineDelta([9]))
    turn.fail(EngineFailed("late"))
    turn.close()
    assert heard == [(None, []), (FinishReason.STOP, ["a"])], "nothing comes after the end"
    assert released == ["a"]
    assert len(turns) == 1
    assert not second.ended
