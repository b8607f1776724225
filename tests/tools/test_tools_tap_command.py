"""The tap: the messages that it shows, leaves out and records."""

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.control import Cancel, Heartbeat
from schemas.events import BlockStart, TurnEvent
from schemas.frames import EventEntry, EventFrame
from services.cli.main import main
from services.runtime.nats.bus import Delivery
from turnwire_tools.tap import command, messages
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


def delivery(subject: str, message: msgspec.Struct) -> Delivery:
    bus: Any = None  # nothing replies
    return Delivery(bus, subject, msgspec.json.encode(message), "")


def test_messages_are_shown_but_upkeep_and_other_turns_on_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def shown(**flags: Any) -> list[str]:
        tap = Tap(TapFlags(**flags), False, None)
        for subject, message in MESSAGES:
            tap.take(delivery(subject, message))
        return capsys.readouterr().out.splitlines()

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


def test_only_its_owner_can_read_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect_to_nothing(work: Coroutine[Any, Any, int]) -> int:
        work.close()
        return 0

    monkeypatch.setattr(command, "run", connect_to_nothing)
    file = tmp_path / "turns.jsonl"
    assert main(["tap", "--nats-url", "nats://n:1", "--record", str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("sent", "expected"),
    [(999.5, 999.5), (1000.5, 1000.5), (0.0, 1000.0), (-5.0, 1000.0), (1e6, 1000.0)],
)
def test_a_message_counts_from_its_sender_s_time_if_that_is_credible(
    sent: float, expected: float
) -> None:
    assert messages.sent_at(EventFrame("p1", 1, time=sent), 1000.0) == expected
    assert messages.sent_at(Cancel("t", 1, "hangup"), 1000.0) == 1000.0
