"""The tap: the messages that it shows, leaves out and, as a process at a real nats-server,
records."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.control import Cancel, Heartbeat
from schemas.events import BlockStart, TurnEvent
from schemas.frames import EventEntry, EventFrame, TurnRequest
from services.runtime.bus import Delivery
from tests.kit.conversations import conversation, user
from tests.kit.events import finish, text
from tests.kit.nats import NatsServer
from tests.kit.processes import MakeProcess
from turnwire_tools.replay.replay_file import read
from turnwire_tools.tap.command import Tap, TapFlags
from turnwire_tools.tap.messages import MessageLine

TEXT = EventEntry("turn-aaaa", 1, [BlockStart(0, "text")])
CALLED: list[TurnEvent] = [BlockStart(0, "reasoning"), BlockStart(1, "tool_use", "Bash", "c1")]
EVENTS = EventFrame("p1", 1, [TEXT, EventEntry("turn-bbbb", 1, CALLED)])
MESSAGES = (
    (subjects.turn("m", "pre"), Cancel("t", 1, "hangup")),
    (subjects.heartbeat("parser", "p1"), Heartbeat("parser", "p1")),
    (subjects.events("f"), EVENTS),
    (subjects.cancel("m"), Cancel("turn-aaaa", 1, "hangup")),
    (subjects.cancel("m"), Cancel("turn-bbbb", 1, "timeout")),
)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Any:
    """The lines that the tap prints of these messages."""

    def lines(**flags: Any) -> list[str]:
        tap = Tap(TapFlags(**flags), False, None)
        bus: Any = None  # nothing replies
        for subject, message in MESSAGES:
            tap.take(Delivery(bus, subject, msgspec.json.encode(message), ""))
        return capsys.readouterr().out.splitlines()

    return lines


def test_messages_are_shown_but_upkeep_and_other_turns_on_request(shown: Any) -> None:
    unreadable, first, second, third, *cancels = shown()
    assert "cannot be read: Object missing required field" in unreadable
    assert first.split()[1:] == ["evt", "f", "turn-aaaa", "[0]", "text"]
    assert second.endswith("turn-bbbb [0] reasoning")
    assert third.endswith("turn-bbbb [1] tool_use Bash c1")
    assert len(cancels) == 2

    assert [line.split("turn-bbbb ")[1] for line in shown(request="bbbb")] == [
        "[0] reasoning",
        "[1] tool_use Bash c1",
        "cancel up to attempt 1: timeout",
    ]

    message = msgspec.json.decode(shown(json=True)[1], type=MessageLine)
    assert message.subject == subjects.events("f")
    assert isinstance(message.payload, msgspec.Raw)
    assert msgspec.json.decode(message.payload, type=EventFrame) == EVENTS


def answer_frame(turn: str, said: str) -> EventFrame:
    return EventFrame("p1", 0, [EventEntry(turn, 1, [*text(0, said), finish(1)])])


async def test_turns_are_recorded_when_they_have_ended(
    nats: NatsServer, make_process: MakeProcess, tmp_path: Path
) -> None:
    file = tmp_path / "turns.jsonl"
    publish = (await make_process("frontend", "f")).publish
    flags = ("--nats-url", nats.url, "--record", str(file), "--request", "turn-one")
    command = (sys.executable, "-m", "services.cli.main", "tap", *flags)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"listening on" in await process.stderr.readline()
        asked = conversation(user("Say hello."))
        for turn_id in ("turn-one", "turn-two", "turn-one-b"):
            publish(subjects.turn("m", "p"), TurnRequest(turn_id, "f", asked))
        publish(subjects.events("f"), answer_frame("turn-two", "not me"))
        publish(subjects.events("f"), answer_frame("turn-one", "Hello."))
        for _ in range(6):
            await process.stdout.readline()
    finally:
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert process.returncode == 0
    assert b"1 turns were not recorded" in err
    assert file.stat().st_mode & 0o777 == 0o600
    [turn] = read("turns", file.read_text()).turns
    assert turn.conversation == asked
    assert (turn.expect, turn.end) == ([("text", "Hello.")], "stop")
