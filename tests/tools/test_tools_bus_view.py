"""The lines in which the tap shows messages."""

import msgspec
from msgspec import Raw, Struct

from schemas import subjects
from schemas.conversation import Sampling
from schemas.errors import Overloaded
from schemas.events import (
    BlockStart,
    Delta,
    Dispatch,
    Failed,
    Finish,
    FinishReason,
    Prepared,
    TurnEvent,
    Usage,
)
from schemas.frames import EventEntry, EventFrame
from schemas.requests import GenerateRequest
from turnwire_tools.tap import bus_view, messages


def lines_of(subject: str, message: Struct) -> list[str]:
    """The columns of each line, with bars between them."""
    lines = bus_view.lines(subject, messages.decode(subject, msgspec.json.encode(message)))
    return [" | ".join((line.kind, line.target, line.turn, line.text)) for line in lines]


def test_each_event_is_described() -> None:
    events: dict[str, TurnEvent] = {
        "prepared: 10 prompt tokens, 90 may follow, w1 → p1": Prepared(
            prompt_tokens=10, max_tokens=90, worker="w1", parser="p1"
        ),
        "[1] tool_use Bash call_1": BlockStart(1, "tool_use", "Bash", "call_1"),
        '[1]    12 "a \\"b\\"\\n"': Delta(1, 12, 'a "b"\n'),
        '[1] dispatch Bash call_1 { "a": 1}': Dispatch(1, "call_1", "Bash", '{\n"a": 1}'),
        "finish: stop, 2 blocks, 10 prompt (8 cached), 5 output tokens": Finish(
            FinishReason.STOP, 2, Usage(prompt=10, cached=8, output=5)
        ),
        "failed: overloaded: all busy": Failed(Overloaded("all busy").info),
    }
    frame = EventFrame("p1", 1, [EventEntry("t1", 1, [*events.values()])])
    assert lines_of(subjects.events("f1"), frame) == [f"evt | f1 | t1 | {text}" for text in events]


def test_prefill_has_no_shard() -> None:
    for parser, shown in (("p1", "tokens to p1"), ("", "a prefill")):
        sampling = Sampling(max_tokens=0)
        request = GenerateRequest("t1", 1, "m", b"", parser, "f1", sampling, [], Raw(b"{}"))
        [line] = lines_of(subjects.generate("m", "w1"), request)
        assert line.endswith(f"max_tokens 0, {shown}")
