"""What engines share: open turns, work on daemon threads, guided decoding, log probabilities."""

import threading

import pytest

from schemas.conversation import OutputFormat
from schemas.errors import EngineFailed, Invalid
from schemas.events import FinishReason
from services.worker.engine import EngineDelta
from services.worker.engines.support import (
    EngineTurn,
    OpenTurns,
    chosen_first,
    guided_arguments,
    in_daemon_thread,
)
from tests.kit.engines import request
from tests.kit.listening import Listener


class Trial:
    """An engine's open turns, and what their sinks heard."""

    def __init__(self) -> None:
        self.turns = OpenTurns("trial")
        self.released: list[str] = []

    def open(self, turn_id: str, sink: Listener | None = None) -> EngineTurn:
        sink = sink or Listener()
        turn = self.turns.open(turn_id, sink, lambda: self.released.append(turn_id))
        sink.opened = True
        return turn


def test_deltas_come_in_order_and_the_engine_is_done_before_the_end_arrives() -> None:
    heard: list[tuple[FinishReason | None, list[str]]] = []

    class Recorder(Listener):
        def put(self, delta: EngineDelta) -> None:
            heard.append((delta.finish, list(trial.released)))

    trial = Trial()
    turn = trial.open("a", Recorder())
    turn.put(EngineDelta([1]))
    turn.put(EngineDelta([2], finish=FinishReason.STOP))
    turn.put(EngineDelta([9]))
    turn.fail(EngineFailed("late"))
    turn.close()
    trial.turns.die("later still")
    assert heard == [(None, []), (FinishReason.STOP, ["a"])], "nothing comes after the end"
    assert trial.released == ["a"]
    assert len(trial.turns) == 0


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


async def test_a_daemon_threads_result_and_error_reach_the_waiter() -> None:
    assert await in_daemon_thread("work", lambda: threading.current_thread().daemon) is True

    def broken() -> None:
        raise ValueError("no such file")

    def leaving() -> None:
        raise SystemExit(3)

    with pytest.raises(ValueError, match="no such file"):
        await in_daemon_thread("work", broken)
    with pytest.raises(RuntimeError, match=r"work: SystemExit\(3\)"):
        await in_daemon_thread("work", leaving)


def test_a_form_becomes_one_argument() -> None:
    schema = {"type": "object"}
    assert guided_arguments(request(guided=OutputFormat("json_schema", schema))) == {"json": schema}
    assert guided_arguments(request(guided=OutputFormat("json_object"))) == {"json_object": True}
    assert guided_arguments(request()) is None


def test_a_grammar_is_of_whole_turns_only() -> None:
    assert guided_arguments(request(grammar='start: "x"')) == {"grammar": 'start: "x"'}
    assert guided_arguments(request(grammar='start: "x"', resumed=1)) is None, (
        "it would start again"
    )
    rest = request(grammar='start: "x"', rest_grammar='start: "y"', resumed=1)
    assert guided_arguments(rest) == {"grammar": 'start: "y"'}, "it begins where this request does"


def test_the_chosen_token_comes_first() -> None:
    values = {3: -2.0, 4: -0.5, 5: -1.0}
    assert chosen_first(5, values, 1) == [(5, -1.0), (4, -0.5)]
    assert chosen_first(5, values, None) == [(5, -1.0), (4, -0.5), (3, -2.0)]
    assert chosen_first(9, values, 0) == [(9, float("-inf"))]
