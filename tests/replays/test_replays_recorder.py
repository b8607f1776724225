"""Tests that a turn on the bus becomes a file that plays like the turn, with its texts or
masked."""

from typing import Any

import aiohttp
import pytest
from msgspec import Raw, json, structs

from schemas.control import Cancel
from schemas.conversation import (
    Call,
    Client,
    Conversation,
    Hints,
    Message,
    Reasoning,
    Result,
    Sampling,
    Text,
    ToolSpec,
)
from schemas.errors import EngineFailed
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Dispatch,
    Failed,
    OutputTokens,
    Prepared,
    TokenLogprob,
    TopLogprob,
    TurnEvent,
    Usage,
)
from schemas.frames import EventEntry, EventFrame, TokenEntry, TokenFrame
from schemas.requests import GenerateRequest, ParseContext, TurnRequest
from tests.kit import events
from turnwire_tools.clients.answer import APIS
from turnwire_tools.replay.gateway import ReplayGateway, serving
from turnwire_tools.replay.player import Session
from turnwire_tools.replay.replay_file import RecordedEvents, RecordedTokens, ReplayFile, read
from turnwire_tools.tap.recorder import BusRecorder
from turnwire_tools.tap.redaction import mask_json

ARGUMENTS = (
    '{"command": "cat \\u00e9\\n\\"x9\\"", "count": 42, "deep": {"a": ["b1", true], "c": null}}'
)
ASKED = Conversation(
    "acme/m",
    [
        Message("user", [Text("List /home/jane.")], name="jane"),
        Message(
            "assistant",
            [Reasoning("I list.", "c2VhbA"), Call("c1", "Bash", '{"command":"ls /home/jane"}')],
        ),
        Message("tool", [Result("c1", [Text("secret.txt")], is_error=False, name="Bash")]),
    ],
    system=[Text("Jane's agent.")],
    tools=[
        ToolSpec(
            "Bash", "Runs it.", {"type": "object", "properties": {"command": {"type": "string"}}}
        )
    ],
    client=Client("session", "agent/1", "jane"),
    hints=Hints(cache_salt="salt"),
    sampling=Sampling(max_tokens=99, stop=["Jane:"]),
    template_kwargs={"greeting": "Hi Jane"},
)
EVENTS: list[TurnEvent] = [
    *events.reasoning(0, ("Jane has ", "1 file."), seal="c2VhbGVk"),
    *events.call(1, "Bash", ARGUMENTS, call_id="toolu_1", pieces=20),
    events.finish(2, usage=Usage(prompt=50, cached=16, output=9, reasoning=3)),
]
KEPT = [event for event in EVENTS if not isinstance(event, Dispatch)]


def asked(turn: str = "t1") -> TurnRequest:
    return TurnRequest(turn, "f", ASKED)


def frame(*sent: TurnEvent) -> EventFrame:
    return EventFrame("p", 1, [EventEntry("t1", 1, list(sent))])


def tokens(at: int, *ids: int) -> TokenFrame:
    return TokenFrame("w", 1, [TokenEntry("t1", 1, at, list(ids))])


def recorded(*messages: Any, redact: bool = False) -> list[bytes]:
    recorder = BusRecorder(redact=redact)
    return [
        turn
        for number, message in enumerate(messages)
        for turn in recorder.take(message, 100.0 + number)
    ]


def replay(turns: list[bytes]) -> ReplayFile:
    return read("recording", (BusRecorder.head() + b"".join(turns)).decode())


@pytest.mark.parametrize("redact", [False, True])
async def test_recording_plays_like_the_turn(redact: bool) -> None:
    frames = (frame(Prepared(50, 10)), frame(*EVENTS[:3]), frame(*EVENTS[3:]))
    recording = replay(recorded(asked(), *frames, redact=redact))
    assert [turn.end for turn in recording.turns] == ["calls"]
    for api in APIS:
        gateway = ReplayGateway(recording)
        async with serving(gateway) as url, aiohttp.ClientSession() as http:
            session = Session(recording, api, http, url, gateway=gateway)
            played = [await session.turn(turn) for turn in recording.turns]
        assert [turn.problems for turn in played] == [[]]


def test_recording_has_the_content_of_the_turn() -> None:
    context = ParseContext("m", "hermes", "f", 50, tools=ASKED.tools)
    request = GenerateRequest(
        "t1", 1, "m", b"", "p", "f", Sampling(), [], Raw(json.encode(context))
    )
    [text] = recorded(asked(), request, tokens(0, 1, 2), tokens(1, 2, 3), frame(*EVENTS))
    [turn] = replay([text]).turns
    assert turn.conversation == structs.replace(ASKED, client=Client(), hints=Hints())
    assert b"jane" in text
    assert b"agent/1" not in text
    assert b"salt" not in text
    assert turn.context is not None
    assert (turn.context.family, turn.context.frontend) == ("hermes", "")
    assert turn.context.tools == ASKED.tools
    assert (turn.usage.prompt, turn.usage.cached) == (50, 16)
    assert [step.tokens for step in turn.steps if isinstance(step, RecordedTokens)] == [[1, 2], [3]]
    [step] = [step for step in turn.steps if isinstance(step, RecordedEvents)]
    assert (step.events, step.at) == (KEPT, 4.0)


def test_failures_and_unfinished_turns_are_recorded() -> None:
    failed = Failed(EngineFailed("no memory").info)
    [text] = recorded(asked(), frame(*EVENTS[:2], failed), asked("t2"))
    assert replay([text]).turns[0].end == "error"
    recorder = BusRecorder()
    for message in (asked(), asked("t2"), Cancel("t2", 1, "hangup")):
        assert recorder.take(message, 1.0) == []
    assert recorder.unfinished == 1


def test_redaction_removes_all_texts_ids_and_log_probabilities() -> None:
    chosen = TokenLogprob("hush", -0.1, 0, top=[TopLogprob("hush", -0.1)])
    said = (OutputTokens(0, [4242], [chosen]), BlockStart(2, "text"), Delta(2, 0, "hush", [chosen]))
    whole = frame(*EVENTS[:-1], *said, BlockStop(2, length=4), EVENTS[-1])
    [text] = recorded(asked(), tokens(0, 1, 2), whole, redact=True)
    for word in ("jane", "Jane", "secret", "list", "cat", "agent", '"tokens"', "c2Vh", "Runs"):
        assert word.encode() not in text, word
    assert b"hush" not in text
    assert b"4242" not in text
    for kept in ["Bash", "command", "count", "42", "toolu_1", "properties", "xxxx"]:
        assert kept.encode() in text, kept


JSON = '{"a\\"b": "x\\u00e9\\n\\\\", "n": [1.5e3, "y", {"k1": true}], "": "\\ud83c\\udf0a"}'
MASKED = {'a"b': "xx\n\\", "n": [1500.0, "x", {"k1": True}], "": "xx"}


def test_json_is_masked_for_every_splitting_and_keeps_its_keys_and_length() -> None:
    assert len(mask_json(JSON)) == len(JSON)
    assert json.decode(mask_json(JSON)) == MASKED
    for pieces in (1, len(JSON) // 3, len(JSON)):
        call = events.call(0, "Bash", JSON, call_id="c1", pieces=pieces)
        whole = frame(*call, events.finish(1))
        [turn] = replay(recorded(asked(), whole, redact=True)).turns
        [step] = [step for step in turn.steps if isinstance(step, RecordedEvents)]
        texts = [event.text for event in step.events if isinstance(event, Delta)]
        sent = [event.text for event in call if isinstance(event, Delta)]
        assert [*map(len, texts)] == [*map(len, sent)]
        assert json.decode("".join(texts)) == MASKED
