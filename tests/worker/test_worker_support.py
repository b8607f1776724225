"""What engines share: open turns, work on daemon threads, guided decoding, log probabilities."""

from typing import Any

import pytest

from schemas.conversation import OutputFormat
from schemas.errors import EngineFailed, Invalid
from schemas.events import FinishReason
from services.worker.engine import EngineDelta
from services.worker.engines.support import (
    OpenTurns,
    guided_arguments,
)
from tests.kit.engines import request
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


def test_guided_decoding_is_one_argument_and_a_grammar_is_of_whole_turns() -> None:
    schema, grammar = {"type": "object"}, 'start: "x"'
    asked: dict[str, Any] = {"grammar": grammar, "resumed": 1}
    for made, arguments in (
        (request(), None),
        (request(guided=OutputFormat("json_schema", schema)), {"json": schema}),
        (request(guided=OutputFormat("json_object")), {"json_object": True}),
        (request(grammar=grammar), {"grammar": grammar}),
        (request(**asked), None),  # it would start again
        (request(**asked, rest_grammar='start: "y"'), {"grammar": 'start: "y"'}),
    ):
        assert guided_arguments(made) == arguments
