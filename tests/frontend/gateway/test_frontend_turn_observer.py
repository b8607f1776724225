"""The span of a turn has a child for each block, and for each attempt after the first."""

import structlog

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import BlockStart, BlockStop, Finish, FinishReason, Prepared, Usage
from services.frontend.gateway.turn_observer import BusTurnObserver
from services.runtime.observability.scope import NO_SCOPE
from tests.kit.scopes import RecordedScope

PREPARED = Prepared(prompt_tokens=9, max_tokens=64, worker="worker-1", parser="parser-1")


def observer(span: RecordedScope) -> BusTurnObserver:
    return BusTurnObserver(structlog.get_logger(), "t", span)


def finish() -> Finish:
    return Finish(FinishReason.STOP, blocks=2, usage=Usage(prompt=9, output=3))


def test_each_block_is_a_child() -> None:
    span = RecordedScope()
    turn = observer(span)
    assert turn.trace_of(1) == {"traceparent": "parent"}
    turn.prepared(PREPARED)
    call = BlockStart(1, "tool_use", name="Read", call_id="c")
    turn.events([BlockStart(0, "text"), BlockStop(0, length=4), call])
    turn.events([BlockStop(1, length=2, complete=False), finish()])
    turn.ended(None, None)
    assert span.names == ["text", "tool_use"]
    text, tool = span.children
    assert text.attributes == {
        "turnwire.block": 0,
        "turnwire.complete": True,
        "turnwire.characters": 4,
    }
    assert tool.attributes["gen_ai.tool.name"] == "Read"
    assert not tool.attributes["turnwire.complete"]
    assert span.attributes["turnwire.worker"] == "worker-1"
    assert span.attributes["gen_ai.usage.output_tokens"] == 3
    assert (span.ends, span.error) == (1, None)


def test_each_later_attempt_is_a_child_and_ends_once() -> None:
    span = RecordedScope()
    turn = observer(span)
    turn.trace_of(1)
    turn.prepared(PREPARED)
    turn.superseded(1, "worker-1 left")
    assert span.events == ["turnwire.attempt_ended"]
    assert turn.trace_of(2) == {"traceparent": "retry"}
    turn.superseded(2, "no answer")
    turn.trace_of(3)
    turn.ended(ErrorInfo(ErrorKind.TIMED_OUT, "late"), None)
    second, third = span.children
    assert (second.ends, second.error, second.after) == (1, "no answer", span)
    assert (third.ends, third.error, third.after) == (1, "timed_out", second)
    assert third.attributes == {"turnwire.attempt": 3, "turnwire.reason": "no answer"}
    assert (span.ends, span.error) == (1, "timed_out")


def test_cancelled_turn_ends_its_open_block() -> None:
    span = RecordedScope()
    turn = observer(span)
    turn.events([BlockStart(0, "reasoning")])
    turn.ended(None, "hangup")
    assert span.attributes["turnwire.cancelled"] == "hangup"
    assert not span.children[0].attributes["turnwire.complete"]


def test_turn_that_is_not_traced_has_no_trace_context() -> None:
    turn = BusTurnObserver(structlog.get_logger(), "t")
    turn.events([BlockStart(0, "text")])
    turn.superseded(1, "left")
    assert turn.trace_of(2) == NO_SCOPE.carrier == {}
    turn.ended(None, None)
