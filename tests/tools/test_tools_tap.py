"""The tap as a process at a real nats-server: the messages that it shows, records and leaves
out."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from schemas import subjects
from schemas.control import Cancel, Heartbeat
from schemas.conversation import Conversation, Message, Text
from schemas.events import BlockStart, BlockStop, Delta, Finish, FinishReason, TurnEvent, Usage
from schemas.frames import EventEntry, EventFrame, TurnRequest
from tests.kit.nats import NatsServer
from tests.kit.processes import MakeProcess
from turnwire_tools.replay.replay_file import read
from turnwire_tools.tap.messages import MessageLine


@asynccontextmanager
async def tap(url: str, *argv: str) -> AsyncIterator[Process]:
    command = [sys.executable, "-m", "services.cli.main", "tap", "--nats-url", url, *argv]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    assert process.stderr is not None
    assert b"listening on" in await process.stderr.readline()
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await process.wait()


async def line(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().rstrip("\n")


@pytest.fixture
async def publish(make_process: MakeProcess) -> Callable[[str, msgspec.Struct], bool]:
    return (await make_process("frontend", "f")).publish


TEXT = EventEntry("turn-aaaa", 1, [BlockStart(0, "text")])
CALLED: list[TurnEvent] = [BlockStart(0, "reasoning"), BlockStart(1, "tool_use", "Bash", "c1")]
EVENTS = EventFrame("p1", 1, [TEXT, EventEntry("turn-bbbb", 1, CALLED)])
BEAT = Heartbeat("parser", "p1")


async def test_events_are_shown_and_upkeep_is_not(
    nats: NatsServer, publish: Callable[..., bool]
) -> None:
    """A message that cannot be read is reported, and the tap goes on."""
    async with tap(nats.url) as process:
        publish(subjects.turn("m", "pre"), Cancel("t", 1, "hangup"))
        publish(subjects.heartbeat("parser", "p1"), BEAT)
        publish(subjects.events("f"), EVENTS)
        unreadable, first, second, third = [await line(process) for _ in range(4)]
    assert "cannot be read: Object missing required field" in unreadable
    assert first.split()[1:] == ["evt", "f", "turn-aaaa", "[0]", "text"]
    assert second.endswith("turn-bbbb [0] reasoning")
    assert third.endswith("turn-bbbb [1] tool_use Bash c1")
    assert process.returncode == 0


async def test_one_turn_is_shown(nats: NatsServer, publish: Callable[..., bool]) -> None:
    async with tap(nats.url, "--request", "bbbb") as process:
        publish(subjects.events("f"), EVENTS)
        publish(subjects.cancel("m"), Cancel("turn-aaaa", 1, "hangup"))
        publish(subjects.cancel("m"), Cancel("turn-bbbb", 1, "timeout"))
        shown = [await line(process) for _ in range(3)]
    assert [text.split("turn-bbbb ")[1] for text in shown] == [
        "[0] reasoning",
        "[1] tool_use Bash c1",
        "cancel up to attempt 1: timeout",
    ]


async def test_whole_messages_are_printed_as_json(
    nats: NatsServer, publish: Callable[..., bool]
) -> None:
    async with tap(nats.url, "--json") as process:
        publish(subjects.events("f"), EVENTS)
        shown = msgspec.json.decode(await line(process), type=MessageLine)
    assert shown.subject == subjects.events("f")
    assert isinstance(shown.payload, msgspec.Raw)
    assert msgspec.json.decode(shown.payload, type=EventFrame) == EVENTS


def answer_frame(turn: str, text: str) -> EventFrame:
    events: list[TurnEvent] = [BlockStart(0, "text"), Delta(0, 0, text)]
    events += [BlockStop(0, length=len(text)), Finish(FinishReason.STOP, 1, Usage(7, 0, 2))]
    return EventFrame("p1", 0, [EventEntry(turn, 1, events)])


async def test_turns_are_recorded_when_they_have_ended(
    nats: NatsServer, publish: Callable[..., bool], tmp_path: Path
) -> None:
    file = tmp_path / "turns.jsonl"
    async with tap(nats.url, "--record", str(file), "--request", "turn-one") as process:
        conversation = Conversation("m", [Message("user", [Text("Say hello.")])])
        for turn_id in ("turn-one", "turn-two", "turn-one-b"):
            publish(subjects.turn("m", "p"), TurnRequest(turn_id, "f", conversation))
        publish(subjects.events("f"), answer_frame("turn-two", "not me"))
        publish(subjects.events("f"), answer_frame("turn-one", "Hello."))
        for _ in range(6):
            await line(process)
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert b"1 turns were not recorded" in err
    assert file.stat().st_mode & 0o777 == 0o600
    [turn] = read("turns", file.read_text()).turns
    assert turn.conversation == conversation
    assert (turn.expect, turn.end) == ([("text", "Hello.")], "stop")
