"""Tests that the player detects late ends of blocks, lost text, unexpected errors and malformed
files."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from schemas.events import BlockStop, Delta, Finish, Prepared, TurnEvent
from services.frontend.turns.interfaces import Admitted, TurnSink
from turnwire_tools.clients.answer import APIS, Api
from turnwire_tools.clients.shared import SseParser
from turnwire_tools.replay.gateway import ClientProgress, ReplayGateway, ReplayTurn, serving
from turnwire_tools.replay.player import Played, Session, differences
from turnwire_tools.replay.replay_file import BadReplay, Gate, Output, RecordedEvents, read

GATED = """
{"replay": 1, "tools": ["Bash"]}
{"user": "Run ls."}
"<tool_call>\\n<function=Bash>\\n<parameter=command>\\nls\\n</parameter>\\n</function>"
{"gate": "call Bash"}
"\\n</tool_call>"
{"expect": [["call", "Bash {\\"command\\": \\"ls\\"}"]], "end": "calls"}
"""


Delay = Callable[[list[TurnEvent]], list[TurnEvent]]
"""Takes the delayed events, and returns those to deliver now."""


class FaultyGateway(ReplayGateway):
    """Delays events, as a faulty pipeline would."""

    def __init__(self, text: str, delay: Delay) -> None:
        super().__init__(read("x", text))
        self._delay = delay

    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> ReplayTurn:
        delay = self._delay
        held: list[TurnEvent] = []

        class DelayingSink:
            def opened(self, prepared: Prepared) -> None:
                sink.opened(prepared)

            def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
                held.extend(events)
                now = delay(held)
                if now:
                    sink.push(now)

        return await super().open(admitted, DelayingSink(), turn_id=turn_id)


async def play(gateway: ReplayGateway, text: str, api: Api = "messages", **options: Any) -> Played:
    replay = read("x", text)
    [turn] = replay.turns
    async with serving(gateway) as url, aiohttp.ClientSession() as http:
        return await Session(replay, api, http, url, gateway=gateway, **options).turn(turn)


def all_at_the_end(held: list[TurnEvent]) -> list[TurnEvent]:
    """Delivers all events at the end of the turn."""
    return list(held) if isinstance(held[-1], Finish) else []


def stops_with_the_next_event(held: list[TurnEvent]) -> list[TurnEvent]:
    """Delivers the end of each block with the next event."""
    now = list(held)
    held.clear()
    if isinstance(now[-1], BlockStop):
        held.append(now.pop())
    return now


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("delay", [all_at_the_end, stops_with_the_next_event])
async def test_late_end_of_a_call_is_a_problem(api: Api, delay: Delay) -> None:
    played = await play(FaultyGateway(GATED, delay), GATED, api, gate_timeout_s=0.2)
    assert any("the gate `call Bash` did not open" in problem for problem in played.problems)
    assert played.answer.story == [("call", 'Bash {"command": "ls"}')]


@pytest.mark.parametrize("api", APIS)
async def test_timely_end_of_a_call_is_accepted(api: Api) -> None:
    played = await play(ReplayGateway(read("x", GATED)), GATED, api)
    assert played.problems == []


async def test_lost_text_is_a_problem() -> None:
    text = '{"user": "x"}\n["one ", "two"]\n{"expect": [["text", "one two!"]], "end": "length"}'

    played = await play(ReplayGateway(read("x", text)), text)
    assert played.problems == [
        "block 0: want text 'one two!', got text 'one two'",
        "want the end length, got stop",
    ]


async def test_count_other_than_the_usage_is_a_problem() -> None:
    class Miscounting(ReplayGateway):
        async def count(self, admitted: Admitted) -> int:
            return 7

    text = '{"user": "x"}\n"one"\n{"expect": [["text", "one"]]}'
    for api in ("messages", "responses"):
        assert (await play(ReplayGateway(read("x", text)), text, api, count=True)).problems == []
        played = await play(Miscounting(read("x", text)), text, api, count=True)
        assert played.problems == ["7 tokens are counted, the answer's usage has 100"]


async def test_unexpected_error_is_a_problem() -> None:
    text = '{"user": "x"}\n"one"\n{"fail": "no memory"}'
    assert (await play(ReplayGateway(read("x", text)), text)).problems == ["error: no memory"]


async def test_recorded_events_are_played_unchanged() -> None:
    text = "\n".join(
        [
            '{"user": "x"}',
            '{"events": [{"type": "block_start", "block": 0, "kind": "text"}, {"type": "delta", "block": 0, "offset": 0, "text": "Hi"}], "at": 0.5}',
            '{"tokens": [1, 2], "at": 0.5}',
            '{"events": [{"type": "block_stop", "block": 0, "length": 2}, {"type": "finish", "reason": "stop", "blocks": 1, "usage": {"prompt": 7, "output": 2}}], "at": 0.6}',
            '{"expect": [["text", "Hi"]], "end": "stop"}',
        ]
    )
    for api in APIS:
        played = await play(ReplayGateway(read("x", text)), text, api)
        assert (played.problems, played.answer.usage) == ([], (7, 2))


async def test_gate_waits_for_the_next_event_of_its_kind() -> None:
    progress, gate = ClientProgress(timeout_s=60), Gate("call")
    answer = (await play(ReplayGateway(read("x", GATED)), GATED)).answer
    first = asyncio.ensure_future(progress.wait_for(gate))
    await asyncio.sleep(0)
    assert not first.done()
    progress.update(answer)
    await first
    second = asyncio.ensure_future(progress.wait_for(gate))
    await asyncio.sleep(0)
    assert not second.done(), "the only call has opened the first gate"
    second.cancel()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_stream_is_split_into_events_for_every_chunking(size: int) -> None:
    stream = 'event: a\ndata: {"x": "ü"}\n\n: comment\n\ndata: {"y":\ndata: 1}\r\n\r\ndata: [DONE]\n\n'.encode()
    parser, events = SseParser(), list[Any]()
    for at in range(0, len(stream), size):
        events += parser.feed(stream[at : at + size])
    assert events == [("a", {"x": "ü"}), ("", {"y": 1}), ("", None)]


def test_lines_of_a_file_are_parsed() -> None:
    first = '{"user": "u"}\n"a"\n["b", "c"]\n{"finish": "length"}\n'
    replay = read("x", f'# a comment\n\n{first}{{"results": ["r"]}}\n')
    assert [turn.line for turn in replay.turns] == [3, 7]
    assert replay.turns[0].steps == [Output(["a"]), Output(["b", "c"])]
    assert replay.apis == list(APIS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "x: no turn in it"),
        ('"a"', "x:1: a turn begins with"),
        ('{"user": "a"}\n{', "x:2: Expecting property name"),
        ('{"user": "a", "results": []}', "x:1: a turn has one of"),
        ('{"request": {}}', "x:1: request and api go together"),
        (
            '{"user": "a"}\n{"gate": "cal"}',
            "x:2: a gate is reasoning, text, call or call NAME, not 'cal'",
        ),
        ('{"user": "a"}\n{"expect": [["say", "x"]]}', "x:2: Invalid enum value 'say'"),
        ('{"user": "a"}\n{"end": "over"}', "x:2: Invalid enum value 'over'"),
        ('{"user": "a"}\n{"what": 1}', "x:2: Object contains unknown field `what`"),
        ('{"user": "a", "api": "soap"}', "x:1: Invalid enum value 'soap'"),
        ('{"replay": 2}', "x:1: version 2 is unknown"),
        ('{"replay": 1, "colour": 2}', "x:1: Object contains unknown field `colour`"),
        ('{"user": "a"}\n{"at": 1}', "x:2: Object contains unknown field `at`"),
        ('{"user": "a"}\n[1]', "x:2: Expected `str`, got `int`"),
        ('{"user": "a"}\n{"events": [{"type": "nonsense"}]}', "x:2: Invalid value 'nonsense'"),
    ],
)
def test_error_names_the_line_of_a_file(text: str, why: str) -> None:
    with pytest.raises(BadReplay, match="^" + why.replace("[", r"\[")):
        read("x", text)


def test_only_line_feeds_end_a_line() -> None:
    replay = read("x", '{"user": "a"}\n"\u2028\u0085"\r\n')
    assert replay.turns[0].steps == [Output(["\u2028\u0085"])]


def test_differences_are_reported() -> None:
    assert differences([("text", "a")], [("text", "a")]) == []
    assert differences([("text", "a"), ("call", "x {}")], [("text", "b")]) == [
        "block 0: want text 'a', got text 'b'",
        "block 1: want call 'x {}', got none",
    ]


def test_recorded_deltas_keep_their_offsets() -> None:
    delta = '{"type": "delta", "block": 1, "offset": 2, "text": "t"}'
    [step] = read("x", f'{{"user": "a"}}\n{{"events": [{delta}]}}').turns[0].steps
    assert step == RecordedEvents([Delta(1, 2, "t")], 0.0)
