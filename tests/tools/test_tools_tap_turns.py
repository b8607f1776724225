"""The tap follows turns to their end."""

import io
from typing import Any

import msgspec

from schemas import subjects
from schemas.frames import EventEntry, EventFrame
from schemas.requests import TurnRequest
from services.runtime.nats.bus import Delivery
from tests.kit.conversations import conversation, user
from tests.kit.events import finish, text
from turnwire_tools.replay.replay_file import read
from turnwire_tools.tap.command import Tap, TapFlags

ASKED = conversation(user("Say hello."))


def delivery(subject: str, message: msgspec.Struct) -> Delivery:
    bus: Any = None  # nothing replies
    return Delivery(bus, subject, msgspec.json.encode(message), "")


def answer_frame(turn: str, said: str) -> EventFrame:
    return EventFrame("p1", 0, [EventEntry(turn, 1, [*text(0, said), finish(1)])])


def test_turns_are_recorded_when_they_have_ended() -> None:
    record = io.BytesIO()
    tap = Tap(TapFlags(request="turn-one"), False, record)
    for turn_id in ("turn-one", "turn-two", "turn-one-b"):
        tap.take(delivery(subjects.turn("m", "p"), TurnRequest(turn_id, "f", ASKED)))
    for turn_id, said in (("turn-two", "not me"), ("turn-one", "Hello.")):
        tap.take(delivery(subjects.events("f"), answer_frame(turn_id, said)))
    assert tap.recorder.unfinished == 1
    [turn] = read("turns", record.getvalue().decode()).turns
    assert turn.conversation == ASKED
    assert (turn.expect, turn.end) == ([("text", "Hello.")], "stop")
