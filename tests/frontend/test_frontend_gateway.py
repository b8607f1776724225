"""What a frontend makes of event frames: every turn gets its own events once and in order, whatever comes."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog
from prometheus_client import CollectorRegistry

from schemas.control import Cancel, ModelCard, Replay
from schemas.conversation import Conversation
from schemas.events import BlockStart, BlockStop, Delta, Finish, FinishReason, Prepared, TurnEvent, Usage
from schemas.frames import EventEntry, EventFrame
from services.frontend.gateway import Gateway
from services.frontend.open_turn import Turn
from services.runtime.bus import Message
from services.runtime.config import FrontendConfig
from services.runtime.registry import Registry

FINISH = Finish(FinishReason.STOP, 1, Usage(prompt=1, output=1))


class Process:
    """As much of a process as the gateway touches between two beats."""

    id = "frontend-1"
    draining = False

    def __init__(self) -> None:
        self.config = FrontendConfig()
        self.log = structlog.get_logger()
        self.metrics = CollectorRegistry()
        self.registry = Registry(3.5)
        self.bus = SimpleNamespace(connected=True, publish=lambda *_: True)
        self.published: list[msgspec.Struct] = []

    def publish(self, _subject: str, message: msgspec.Struct) -> bool:
        self.published.append(message)
        return True


class Sink:
    def __init__(self) -> None:
        self.events: list[TurnEvent] = []
        self.raises = False
        self.prepared: list[Prepared] = []

    def opened(self, prepared: Prepared) -> None:
        assert not self.events
        self.prepared.append(prepared)

    def push(self, events: list[TurnEvent]) -> None:
        if self.raises:
            self.raises = False
            raise ZeroDivisionError
        self.events += events

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Delta))


class Stage:
    """A gateway with open turns, and a parser that speaks to it."""

    def __init__(self) -> None:
        self.process = Process()
        process: Any = self.process
        self.gateway = Gateway(process, self.process.config)
        self.sinks: dict[str, Sink] = {}
        self._seq = 0

    def open(self, turn_id: str) -> Sink:
        sink = self.sinks[turn_id] = Sink()
        ignore: Callable[..., None] = lambda *_: None  # noqa: E731
        turn = Turn(turn_id, ModelCard("m"), Conversation("m", []), sink, deadline=1e9, traceparent=None, cancel=ignore)
        turn.outcome = asyncio.get_running_loop().create_future()
        self.gateway._turns[turn_id] = turn
        self.hear((turn_id, [Prepared(1, 9, "worker-1", "parser-1"), BlockStart(0, "text")]))
        return sink

    def hear(self, *entries: tuple[str, list[TurnEvent]], attempt: int = 1) -> None:
        self._seq += 1
        frame = EventFrame("parser-1", self._seq, [EventEntry(turn, attempt, events) for turn, events in entries])
        bus: Any = self.process.bus
        self.gateway._frame(Message(bus, "evt", msgspec.json.encode(frame), ""))

    def asked(self) -> list[Replay]:
        return [message for message in self.process.published if isinstance(message, Replay)]


@pytest.fixture
async def stage() -> Stage:
    return Stage()


async def test_each_turn_gets_its_own_deltas_in_order(stage: Stage) -> None:
    one, two = stage.open("a"), stage.open("b")
    for at, letter in enumerate("hello"):
        stage.hear(("a", [Delta(0, at, letter)]), ("b", [Delta(0, at, letter.upper())]))
    assert (one.text, two.text) == ("hello", "HELLO")
    stage.hear(("a", [BlockStop(0, length=5), FINISH]))
    assert one.events[-1] == FINISH
    assert stage.gateway.running == 1


async def test_a_sink_hears_once_and_first_that_its_turn_is_prepared(stage: Stage) -> None:
    sink = stage.open("a")
    assert [prepared.worker for prepared in sink.prepared] == ["worker-1"]
    turn = stage.gateway._turns["a"]
    turn.interruptions, turn.attempt, turn.outcome = 1, 2, asyncio.get_running_loop().create_future()
    stage.hear(("a", [Prepared(1, 9, "worker-2", "parser-1"), Delta(0, 0, "x")]), attempt=2)
    assert turn.outcome.done()
    assert sink.text == "x"
    assert len(sink.prepared) == 1


async def test_what_was_shown_is_dropped_also_in_part(stage: Stage) -> None:
    sink = stage.open("a")
    stage.hear(("a", [Delta(0, 0, "hel")]))
    stage.hear(("a", [Delta(0, 0, "hel")]))
    stage.hear(("a", [Delta(0, 1, "ello")]))
    stage.hear(("a", [Delta(0, 5, "!")]))
    assert sink.text == "hello!"
    assert stage.asked() == []


async def test_a_hole_is_asked_for_and_filled(stage: Stage) -> None:
    sink = stage.open("a")
    stage.hear(("a", [Delta(0, 0, "he")]))
    stage.hear(("a", [Delta(0, 4, "o")]))
    stage.hear(("a", [Delta(1, 2, "x")]))
    assert sink.text == "he"
    (replay,) = stage.asked()
    assert [(standing.turn, standing.block, standing.offset) for standing in replay.streams] == [("a", 0, 2)]
    stage.hear(("a", [Delta(0, 2, "llo")]))
    assert sink.text == "hello"


async def test_a_delta_of_no_open_block_is_not_shown(stage: Stage) -> None:
    sink = stage.open("a")
    stage.hear(("a", [Delta(0, 0, "so"), BlockStop(0, length=2)]))
    stage.hear(("a", [Delta(0, 2, "late")]))
    stage.hear(("a", []))
    assert sink.text == "so"


async def test_of_another_attempt_nothing_is_heard_but_that_it_is_over(stage: Stage) -> None:
    sink = stage.open("a")
    stage.gateway._turns["a"].attempt = 2
    stage.hear(("a", [Delta(0, 0, "old")]))
    assert sink.text == ""
    (cancel,) = [message for message in stage.process.published if isinstance(message, Cancel)]
    assert (cancel.turn, cancel.attempt) == ("a", 1)


async def test_before_it_is_prepared_a_delta_is_a_hole(stage: Stage) -> None:
    sink = stage.open("a")
    stage.gateway._turns["a"].streaming = False
    stage.hear(("a", [Delta(0, 0, "early")]))
    assert sink.text == ""
    assert len(stage.asked()) == 1


async def test_trouble_of_one_turn_is_not_that_of_its_neighbours(stage: Stage) -> None:
    one, two = stage.open("a"), stage.open("b")
    one.raises = True
    with structlog.testing.capture_logs():
        stage.hear(("a", [Delta(0, 0, "x")]), ("b", [Delta(0, 0, "y")]))
    assert two.text == "y"
    assert stage.gateway.running == 1
    assert [type(event).__name__ for event in one.events] == ["BlockStart", "Failed"]
