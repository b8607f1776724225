"""Tests that the player detects late ends of blocks, lost text, unexpected errors and malformed
files."""

from typing import Any

import aiohttp
import pytest

from schemas.events import BlockStop, Prepared, TurnEvent
from services.frontend.turns.interfaces import Admitted, OpenTurn, TurnSink
from turnwire_tools.clients.answer import APIS, Api
from turnwire_tools.replay.gateway import ReplayGateway, serving
from turnwire_tools.replay.player import Played, Session
from turnwire_tools.replay.replay_file import BadReplay, read

GATED = """
{"replay": 1, "tools": ["Bash"]}
{"user": "Run ls."}
"<tool_call>\\n<function=Bash>\\n<parameter=command>\\nls\\n</parameter>\\n</function>"
{"gate": "call Bash"}
"\\n</tool_call>"
{"expect": [["call", "Bash {\\"command\\": \\"ls\\"}"]], "end": "calls"}
"""


class LateStops(ReplayGateway):
    """Delivers the end of each block with the next event, as a faulty pipeline would."""

    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> OpenTurn:
        held: list[TurnEvent] = []

        class DelayingSink(TurnSink):
            def opened(self, prepared: Prepared) -> None:
                sink.opened(prepared)

            def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
                now = [*held, *events]
                held.clear()
                if isinstance(now[-1], BlockStop):
                    held.append(now.pop())
                if now:
                    sink.push(now)

        return await super().open(admitted, DelayingSink(), turn_id=turn_id)


async def play(gateway: ReplayGateway, text: str, api: Api = "messages", **options: Any) -> Played:
    replay = read("x", text)
    [turn] = replay.turns
    async with serving(gateway) as url, aiohttp.ClientSession() as http:
        return await Session(replay, api, http, url, gateway=gateway, **options).turn(turn)


async def test_late_end_of_a_call_is_a_problem() -> None:
    for api in APIS:
        played = await play(LateStops(read("x", GATED)), GATED, api, gate_timeout_s=0.2)
        assert "the gate `call Bash` did not open" in "\n".join(played.problems), api
        assert played.answer.story == [("call", 'Bash {"command": "ls"}')]


async def test_lost_text_is_a_problem() -> None:
    text = '{"user": "x"}\n["one ", "two"]\n{"expect": [["text", "one two!"]], "end": "length"}'
    played = await play(ReplayGateway(read("x", text)), text)
    assert played.problems == [
        "block 0: want text 'one two!', got text 'one two'",
        "want the end length, got stop",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('"a"', "x:1: a turn begins with"),
        ('{"user": "a"}\n{', "x:2: Expecting property name"),
        ('{"replay": 2}', "x:1: version 2 is unknown"),
        ('{"user": "a"}\n{"at": 1}', "x:2: Object contains unknown field `at`"),
    ],
)
def test_error_names_the_line_of_a_file(text: str, why: str) -> None:
    with pytest.raises(BadReplay, match="^" + why):
        read("x", text)
