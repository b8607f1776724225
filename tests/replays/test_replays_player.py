"""The harness notices what it is there to notice: late ends, lost blocks, wrong order, silence."""

import asyncio
from typing import Any

import aiohttp
import pytest

from schemas.conversation import Conversation
from schemas.events import BlockStop, Delta, Finish, TurnEvent
from services.cli.replay.answer import Events
from services.cli.replay.gateway import Gates, ReplayGateway, ReplayTurn
from services.cli.replay.player import Played, Session
from services.cli.replay.script import APIS, Api, BadReplay, Gate, Say, differences, read
from services.cli.replay.server import serving
from services.frontend.turns import TurnSink

GATED = """
{"replay": 1, "tools": ["Bash"]}
{"user": "Run ls."}
"<tool_call>\\n<function=Bash>\\n<parameter=command>\\nls\\n</parameter>\\n</function>"
{"gate": "call Bash"}
"\\n</tool_call>"
{"expect": [["call", "Bash {\\"command\\": \\"ls\\"}"]], "end": "calls"}
"""


class Meddling(ReplayGateway):
    """Changes what comes, as a pipeline with a fault would."""

    def __init__(self, text: str, meddle: Any) -> None:
        super().__init__(read("x", text))
        self._meddle = meddle

    async def open(
        self, conversation: Conversation, sink: TurnSink, *, turn_id: str, traceparent: str | None = None
    ) -> ReplayTurn:
        meddle, held = self._meddle, []

        class Between:
            def push(self, events: list[TurnEvent]) -> None:
                held.extend(events)
                now = meddle(held)
                if now:
                    sink.push(now)

        return await super().open(conversation, Between(), turn_id=turn_id, traceparent=traceparent)


async def play(gateway: ReplayGateway, text: str, api: Api = "messages", **options: Any) -> Played:
    async with serving(gateway) as url, aiohttp.ClientSession() as http:
        [played] = await Session(read("x", text), api, http, url, gateway=gateway, **options).play()
    return played


def to_the_end(held: list[TurnEvent]) -> list[TurnEvent]:
    """All events at the end of the turn, as Dynamo has them."""
    return list(held) if isinstance(held[-1], Finish) else []


def only_stops_late(held: list[TurnEvent]) -> list[TurnEvent]:
    """Each block's end only with the next event."""
    now = list(held)
    held.clear()
    if isinstance(now[-1], BlockStop):
        held.append(now.pop())
    return now


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("meddle", [to_the_end, only_stops_late])
async def test_a_call_that_is_told_late_is_noticed(api: Api, meddle: Any) -> None:
    played = await play(Meddling(GATED, meddle), GATED, api, gate_timeout_s=0.2)
    assert any("the gate `call Bash` did not open" in problem for problem in played.problems)
    assert played.answer.story == [("call", 'Bash {"command": "ls"}')]


@pytest.mark.parametrize("api", APIS)
async def test_a_call_that_is_told_in_time_is_fine(api: Api) -> None:
    played = await play(ReplayGateway(read("x", GATED)), GATED, api)
    assert played.problems == []


async def test_lost_text_is_noticed() -> None:
    text = '{"user": "x"}\n["one ", "two"]\n{"expect": [["text", "one two!"]], "end": "length"}'

    played = await play(ReplayGateway(read("x", text)), text)
    assert played.problems == ["block 0: want text 'one two!', got text 'one two'", "want the end length, got stop"]


async def test_an_error_that_nobody_expects_is_a_problem() -> None:
    text = '{"user": "x"}\n"one"\n{"fail": "no memory"}'
    assert (await play(ReplayGateway(read("x", text)), text)).problems == ["error: no memory"]


async def test_recorded_events_are_played_as_they_were() -> None:
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


async def test_a_gate_waits_for_one_more_of_its_kind() -> None:
    gates, gate = Gates(), Gate("call")
    reader = (await play(ReplayGateway(read("x", GATED)), GATED)).answer
    first = asyncio.ensure_future(gates.wait(gate))
    await asyncio.sleep(0)
    assert not first.done()
    gates.look(reader)
    await first
    second = asyncio.ensure_future(gates.wait(gate))
    await asyncio.sleep(0)
    assert not second.done(), "the one call that there is has opened the first gate"
    second.cancel()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_split_whatever_the_chunks(size: int) -> None:
    stream = 'event: a\ndata: {"x": "ü"}\n\n: comment\n\ndata: {"y":\ndata: 1}\r\n\r\ndata: [DONE]\n\n'.encode()
    events = Events()
    found = [event for at in range(0, len(stream), size) for event in events.feed(stream[at : at + size])]
    assert found == [("a", {"x": "ü"}), ("", {"y": 1}), ("", None)]


def test_lines_of_a_file() -> None:
    replay = read("x", '# a comment\n\n{"user": "u"}\n"a"\n["b", "c"]\n{"finish": "length"}\n{"results": ["r"]}\n')
    assert [turn.line for turn in replay.turns] == [3, 7]
    assert replay.turns[0].steps == [Say(["a"]), Say(["b", "c"])]
    assert replay.apis == list(APIS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "x: no turn in it"),
        ('"a"', "x:1: a turn begins with"),
        ('{"user": "a"}\n{', "x:2: Expecting property name"),
        ('{"user": "a", "results": []}', "x:1: a turn has one of"),
        ('{"request": {}}', "x:1: request and api go together"),
        ('{"user": "a"}\n{"gate": "cal"}', "x:2: a gate waits for"),
        ('{"user": "a"}\n{"expect": [["say", "x"]]}', "x:2: 'say' is none of"),
        ('{"user": "a"}\n{"end": "over"}', "x:2: Invalid enum value 'over'"),
        ('{"user": "a"}\n{"what": 1}', "x:2: what is unknown"),
        ('{"user": "a", "api": "soap"}', "x:1: Invalid enum value 'soap'"),
        ('{"replay": 2}', "x:1: version 2 is not known"),
        ('{"replay": 1, "colour": 2}', "x:1: colour is unknown in the head"),
        ('{"user": "a"}\n{"at": 1}', "x:2: at belongs to"),
        ('{"user": "a"}\n[1]', "x:2: Expected `str`, got `int`"),
        ('{"user": "a"}\n{"events": [{"type": "nonsense"}]}', "x:2: Invalid value 'nonsense'"),
    ],
)
def test_what_is_no_replay(text: str, why: str) -> None:
    with pytest.raises(BadReplay, match="^" + why.replace("[", r"\[")):
        read("x", text)


def test_only_line_ends_end_a_line() -> None:
    replay = read("x", '{"user": "a"}\n"\u2028\u0085"\r\n')
    assert replay.turns[0].steps == [Say(["\u2028\u0085"])]


def test_differences() -> None:
    assert differences([("text", "a")], [("text", "a")]) == []
    assert differences([("text", "a"), ("call", "x {}")], [("text", "b")]) == [
        "block 0: want text 'a', got text 'b'",
        "block 1: want call 'x {}', got none",
    ]


def test_the_offsets_of_recorded_deltas_hold() -> None:
    replay = read("x", '{"user": "a"}\n{"events": [{"type": "delta", "block": 1, "offset": 2, "text": "t"}]}')
    [step] = replay.turns[0].steps
    assert step.events == [Delta(1, 2, "t")]  # type: ignore[union-attr]
