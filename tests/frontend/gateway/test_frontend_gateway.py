"""Event frames: every turn gets its own events, once and in order."""

import asyncio
import base64
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
import structlog
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.control import VISION, Cancel, Heartbeat, ModelCard, Replay, SessionPlaced
from schemas.conversation import Client, Conversation, Media, Message
from schemas.errors import (
    DEADLINE_PASSED,
    MEDIA_MISSING,
    ErrorInfo,
    ErrorKind,
    Invalid,
    TimedOut,
    Unavailable,
)
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Failed,
    Finish,
    FinishReason,
    Interrupted,
    Prepared,
    TurnEvent,
    Usage,
)
from schemas.frames import EventEntry, EventFrame, TurnRequest, pack_ids
from schemas.session import placement_key
from services.frontend.content.image import ImageSource, InlineImage
from services.frontend.gateway import preprocessor_client, turn_table
from services.frontend.gateway.gateway import BusGateway
from services.frontend.gateway.pipeline import BusPipeline
from services.frontend.http.auth import anyone
from services.frontend.media.image_reader import PutImage
from services.frontend.turns.interfaces import OpenTurn
from services.runtime.bus import Delivery
from services.runtime.config import FrontendConfig
from services.runtime.registry import ProcessRegistry
from tests.kit.frontend import admission
from tests.kit.pdf_files import PNG
from tests.kit.waiting import eventually

FINISH = Finish(FinishReason.STOP, 1, Usage(prompt=1, output=1))


class Bus:
    """A bus on which a preprocessor accepts every request; the test plays the parser."""

    connected = True

    def __init__(self) -> None:
        self.requests: list[TurnRequest] = []
        self.subjects: list[str] = []
        self.replies: list[bytes] = []

    def ask(
        self, subject: str, data: bytes, _timeout_s: float, known: Callable[[bytes], None]
    ) -> Callable[[], None]:
        self.requests.append(msgspec.json.decode(data, type=TurnRequest))
        self.subjects.append(subject)
        known(b"{}")
        return lambda: None


class Process:
    """What the gateway uses of a process."""

    id = "frontend-1"
    tracer = None
    draining = False
    failure = None
    cut_off = False

    def __init__(self, config: FrontendConfig) -> None:
        self.config = config
        self.log = structlog.get_logger()
        self.metrics = CollectorRegistry()
        self.registry = ProcessRegistry(3.5)
        for stage in ("preprocessor", "worker", "parser"):
            self.registry.receive(Heartbeat(stage, f"{stage}-1", models=[ModelCard("m")]), 0.0)
        self.bus = Bus()
        self.published: list[msgspec.Struct] = []
        self.handlers: dict[str, Callable[[Delivery], None]] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.on_tick: list[Callable[[float], None]] = []
        self.on_attached: list[Callable[[], None]] = []
        self.on_reconnect: list[Callable[[], None]] = []

    async def subscribe(self, subject: str, handler: Callable[[Delivery], None]) -> None:
        self.handlers[subject] = handler

    def publish(self, _subject: str, message: msgspec.Struct) -> bool:
        self.published.append(message)
        return True

    def spawn(self, work: Coroutine[Any, Any, None], _name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]


class Sink:
    def __init__(self) -> None:
        self.events: list[TurnEvent] = []
        self.raises = False
        self.prepared: list[Prepared] = []

    def opened(self, prepared: Prepared) -> None:
        assert not self.events
        self.prepared.append(prepared)

    def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
        if self.raises:
            self.raises = False
            raise ZeroDivisionError
        self.events += events

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Delta))


class Stage:
    """A gateway with open turns, and a parser that sends to it."""

    def __init__(self, config: FrontendConfig | None = None) -> None:
        self.process = Process(config or FrontendConfig())
        process: Any = self.process
        self.pipeline = BusPipeline(process, self.process.config)
        self.gateway = self.pipeline.gateway
        self.put_image: PutImage | None = None
        self._seq = 0

    async def begin(
        self, turn_id: str, conversation: Conversation | None = None
    ) -> tuple[Sink, asyncio.Task[OpenTurn]]:
        """Requests a turn; the preprocessor has it."""
        sink, before = Sink(), len(self.process.bus.requests)
        opening = asyncio.create_task(
            self.opened(conversation or Conversation("m", []), sink, turn_id)
        )
        await eventually(lambda: len(self.process.bus.requests) > before)
        return sink, opening

    async def opened(self, conversation: Conversation, sink: Sink, turn_id: str) -> OpenTurn:
        admitted = await admission(self.pipeline, self.put_image).admit(conversation, anyone())
        return await self.gateway.open(admitted, sink, turn_id=turn_id)

    async def open(self, turn_id: str) -> Sink:
        """Opens a turn, and starts its first block."""
        sink, opening = await self.begin(turn_id)
        self.send((turn_id, [Prepared(1, 9, "worker-1", "parser-1"), BlockStart(0, "text")]))
        await opening
        return sink

    def send(self, *entries: tuple[str, list[TurnEvent]], attempt: int = 1) -> None:
        self._seq += 1
        frame = EventFrame(
            "parser-1", self._seq, [EventEntry(turn, attempt, events) for turn, events in entries]
        )
        bus: Any = self.process.bus
        self.process.handlers[subjects.events(self.process.id)](
            Delivery(bus, "evt", msgspec.json.encode(frame), "")
        )

    def refuse(self, turn: str, *, attempt: int = 1, code: str | None = None) -> None:
        """The preprocessor found no worker for the attempt."""
        error = ErrorInfo(ErrorKind.UNAVAILABLE, "no slots", code=code)
        frame = EventFrame("preprocessor-1", 0, [EventEntry(turn, attempt, [Failed(error)])])
        bus: Any = self.process.bus
        self.process.handlers[subjects.events(self.process.id)](
            Delivery(bus, "evt", msgspec.json.encode(frame), "")
        )

    def serves(self, name: str, *features: str, draining: bool = False) -> None:
        """All stages of a model with the alias `coder` send a heartbeat."""
        card = ModelCard(name, aliases=["coder"], features=[*features])
        for kind in ("preprocessor", "worker", "parser"):
            self.process.registry.receive(
                Heartbeat(kind, f"{kind}-{name}", models=[card], draining=draining), 0.0
            )

    def replays(self) -> list[Replay]:
        return [message for message in self.process.published if isinstance(message, Replay)]

    def cancels(self) -> list[tuple[str, int]]:
        return [
            (message.turn, message.attempt)
            for message in self.process.published
            if isinstance(message, Cancel)
        ]


@pytest.fixture
async def stage() -> Stage:
    stage = Stage()
    await stage.gateway.start()
    return stage


async def test_each_turn_gets_its_own_deltas_in_order(stage: Stage) -> None:
    one, two = await stage.open("a"), await stage.open("b")
    for at, letter in enumerate("hello"):
        stage.send(("a", [Delta(0, at, letter)]), ("b", [Delta(0, at, letter.upper())]))
    assert (one.text, two.text) == ("hello", "HELLO")
    stage.send(("a", [BlockStop(0, length=5), FINISH]))
    assert one.events[-1] == FINISH
    assert stage.gateway.running == 1


async def test_attempts_carry_how_long_earlier_ones_were_held(stage: Stage) -> None:
    """One that is refused after a while, then one that streams for long before its worker dies."""
    _, opening = await stage.begin("a")
    await asyncio.sleep(0.2)
    stage.refuse("a")
    await eventually(lambda: len(stage.process.bus.requests) == 2)
    stage.send(("a", [Prepared(1, 9, "worker-1", "parser-1"), BlockStart(0, "text")]), attempt=2)
    await opening
    second_at = asyncio.get_running_loop().time()
    await asyncio.sleep(1.0)
    lost = Interrupted("worker-1", pack_ids([7]), ErrorInfo(ErrorKind.ENGINE, "died"))
    stage.send(("a", [lost]), attempt=2)
    await eventually(lambda: len(stage.process.bus.requests) == 3)
    first, second, third = (request.held_s for request in stage.process.bus.requests)
    assert first == 0.0
    assert second >= 0.2
    assert second <= third < second + asyncio.get_running_loop().time() - second_at
    stage.send(("a", [Prepared(1, 9, "worker-1", "parser-1")]), attempt=3)
    await asyncio.gather(*stage.process.tasks)


async def test_sink_is_opened_once_and_first(stage: Stage) -> None:
    sink = await stage.open("a")
    assert [prepared.worker for prepared in sink.prepared] == ["worker-1"]
    stage.send(("a", [Interrupted("worker-1", pack_ids([7]), ErrorInfo(ErrorKind.ENGINE, "died"))]))
    await eventually(lambda: len(stage.process.bus.requests) == 2)
    again = stage.process.bus.requests[-1]
    assert (again.attempt, again.resume, again.avoid) == (2, pack_ids([7]), ["worker-1"])
    stage.send(("a", [Prepared(1, 9, "worker-2", "parser-1"), Delta(0, 0, "x")]), attempt=2)
    assert sink.text == "x"
    assert len(sink.prepared) == 1
    await asyncio.gather(*stage.process.tasks)


async def test_repeated_events_are_dropped_also_in_part(stage: Stage) -> None:
    sink = await stage.open("a")
    stage.send(("a", [Delta(0, 0, "hel")]))
    stage.send(("a", [Delta(0, 0, "hel")]))
    stage.send(("a", [Delta(0, 1, "ello")]))
    stage.send(("a", [Delta(0, 5, "!")]))
    assert sink.text == "hello!"
    assert stage.replays() == []


async def test_gap_is_replayed(stage: Stage) -> None:
    sink = await stage.open("a")
    stage.send(("a", [Delta(0, 0, "he")]))
    stage.send(("a", [Delta(0, 4, "o")]))
    stage.send(("a", [Delta(1, 2, "x")]))
    assert sink.text == "he"
    (replay,) = stage.replays()
    assert [(position.turn, position.block, position.offset) for position in replay.streams] == [
        ("a", 0, 2)
    ]
    stage.send(("a", [Delta(0, 2, "llo")]))
    assert sink.text == "hello"


async def test_delta_without_an_open_block_is_dropped(stage: Stage) -> None:
    sink = await stage.open("a")
    stage.send(("a", [Delta(0, 0, "so"), BlockStop(0, length=2)]))
    stage.send(("a", [Delta(0, 2, "late")]))
    stage.send(("a", []))
    assert sink.text == "so"


async def test_events_of_another_attempt_are_ignored_and_cancelled_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_table, "CANCEL_AGAIN_S", 0.0)
    stage = Stage()
    await stage.gateway.start()
    sink = await stage.open("a")
    stage.send(("a", [Interrupted("worker-1", b"", ErrorInfo(ErrorKind.ENGINE, "died"))]))
    await eventually(lambda: len(stage.process.bus.requests) == 2)
    stage.send(("a", [Delta(0, 0, "old")]))
    assert sink.text == ""
    assert stage.cancels() == [("a", 1), ("a", 1)]


async def test_cancellation_is_not_repeated_at_once(stage: Stage) -> None:
    for _ in range(3):
        stage.send(("gone", [Delta(0, 0, "x")]))
    assert stage.cancels() == [("gone", 1)]


async def test_delta_before_the_turn_is_prepared_is_a_gap(stage: Stage) -> None:
    sink, opening = await stage.begin("a")
    stage.send(("a", [Delta(0, 0, "early")]))
    assert sink.text == ""
    assert len(stage.replays()) == 1
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    assert stage.gateway.running == 0


async def test_failure_of_one_turn_does_not_affect_the_others(stage: Stage) -> None:
    one, two = await stage.open("a"), await stage.open("b")
    one.raises = True
    with structlog.testing.capture_logs():
        stage.send(("a", [Delta(0, 0, "x")]), ("b", [Delta(0, 0, "y")]))
    assert two.text == "y"
    assert stage.gateway.running == 1
    assert [type(event).__name__ for event in one.events] == ["BlockStart", "Failed"]


async def test_late_request_is_not_tried_again(stage: Stage) -> None:
    _, opening = await stage.begin("a")
    error = ErrorInfo(ErrorKind.TIMED_OUT, "too late", code=DEADLINE_PASSED)
    frame = EventFrame("preprocessor-1", 0, [EventEntry("a", 1, [Failed(error)])])
    bus: Any = stage.process.bus
    stage.process.handlers[subjects.events(stage.process.id)](
        Delivery(bus, "evt", msgspec.json.encode(frame), "")
    )
    with pytest.raises(TimedOut, match="too late"):
        await asyncio.wait_for(opening, 60)
    assert len(stage.process.bus.requests) == 1
    assert stage.gateway.running == 0


async def image_turn(stage: Stage) -> tuple[list[str], asyncio.Task[OpenTurn]]:
    """Requests a turn with an image. Returns the hashes of the images that are stored, from now on,
    too."""
    stored: list[str] = []

    async def put(image: str, data: bytes) -> None:
        assert data == PNG
        stored.append(image)

    stage.put_image = put
    for kind in ("preprocessor", "worker", "parser"):
        card = ModelCard("m", features=[VISION])
        stage.process.registry.receive(Heartbeat(kind, f"{kind}-1", models=[card]), 0.0)
    source = ImageSource(base64.b64encode(PNG), Invalid)
    image = InlineImage("image", "image/png", len(PNG), source=source)
    _, opening = await stage.begin("a", Conversation("m", [Message("user", [image])]))
    return stored, opening


async def test_missing_image_is_stored_again_for_the_next_attempt(stage: Stage) -> None:
    stored, opening = await image_turn(stage)
    first = stage.process.bus.requests[0].conversation
    assert [part.hash for part in first.messages[0].parts if isinstance(part, Media)] == stored
    assert len(stored) == 1
    stage.refuse("a", code=MEDIA_MISSING)
    await eventually(lambda: len(stage.process.bus.requests) == 2)
    assert stored == stored[:1] * 2
    assert stage.process.bus.requests[1].conversation == first
    stage.send(("a", [Prepared(1, 9, "worker-1", "parser-1"), BlockStart(0, "text")]), attempt=2)
    await opening


async def test_image_that_stays_missing_fails_the_turn(stage: Stage) -> None:
    stored, opening = await image_turn(stage)
    stage.refuse("a", code=MEDIA_MISSING)
    await eventually(lambda: len(stage.process.bus.requests) == 2)
    stage.refuse("a", attempt=2, code=MEDIA_MISSING)
    with pytest.raises(Unavailable):
        await asyncio.wait_for(opening, 60)
    assert len(stored) == 2
    assert stage.gateway.running == 0


async def test_resumed_turn_whose_image_is_lost_fails(stage: Stage) -> None:
    """The data is gone by then."""
    stored, opening = await image_turn(stage)
    stage.send(("a", [Prepared(1, 9, "worker-1", "parser-1"), BlockStart(0, "text")]))
    await opening
    stage.send(("a", [Interrupted("worker-1", pack_ids([7]), ErrorInfo(ErrorKind.ENGINE, "died"))]))
    await eventually(lambda: len(stage.process.bus.requests) == 2)
    stage.refuse("a", attempt=2, code=MEDIA_MISSING)
    await eventually(lambda: stage.gateway.running == 0)
    assert len(stored) == 1


async def test_helpers_of_an_agent_meet_at_one_preprocessor(stage: Stage) -> None:
    for number in range(2, 9):
        stage.process.registry.receive(
            Heartbeat("preprocessor", f"preprocessor-{number}", models=[ModelCard("m")]), 0.0
        )
    places: dict[str, set[str]] = {}
    for agent in range(12):
        parent = f"session-{agent % 6}"
        names = [f"{agent}.{helper}" for helper in range(8)]
        openings = []
        for name in names:
            client = Client(session=name, parent=parent, kind="helper")
            openings.append(
                asyncio.create_task(
                    stage.opened(Conversation("m", [], client=client), Sink(), name)
                )
            )
        await eventually(lambda: len(stage.process.bus.requests) == 8 * (agent + 1))  # noqa: B023
        places.setdefault(parent, set()).update(stage.process.bus.subjects[-8:])
        for name in names:
            stage.send((name, [Prepared(1, 9, "worker-1", "parser-1")]))
        await asyncio.gather(*openings)
    assert {len(found) for found in places.values()} == {1}
    assert len(set.union(*places.values())) > 1


async def test_turn_for_an_alias_moves_to_another_model_if_its_own_drains(stage: Stage) -> None:
    stage.serves("v1")
    asked = Conversation("coder", [], client=Client(session="s"))
    admitted = await admission(stage.pipeline).admit(asked, anyone())
    assert admitted.card.name == "v1"
    stage.serves("v1", draining=True)
    stage.serves("v2")
    opening = asyncio.create_task(stage.gateway.open(admitted, Sink(), turn_id="a"))
    await eventually(lambda: len(stage.process.bus.requests) == 1)
    assert stage.process.bus.requests[0].conversation.model == "v2"
    stage.send(("a", [Prepared(1, 9, "worker-v2", "parser-v2")]))
    await opening
    assert stage.gateway.turns.by_id["a"].card.name == "v2"
    assert SessionPlaced(placement_key(asked), "coder", "v2") in stage.process.published


@pytest.mark.parametrize("features", [[], [VISION]])
async def test_model_that_takes_a_turn_over_gets_images_only_with_vision(
    stage: Stage, features: list[str]
) -> None:
    stage.serves("v1", VISION)
    image = Media("image", "image/png", 74, hash="h", width=2, height=2)
    asked = Conversation("coder", [Message("user", [image])], client=Client(session="s"))
    admitted = await admission(stage.pipeline).admit(asked, anyone())
    stage.serves("v1", VISION, draining=True)
    stage.serves("v2", *features)
    opening = asyncio.create_task(stage.gateway.open(admitted, Sink(), turn_id="a"))
    await eventually(lambda: len(stage.process.bus.requests) == 1)
    expected = image if features else Media("image", "image/png", 74)
    assert stage.process.bus.requests[0].conversation.messages[0].parts == [expected]
    stage.send(("a", [Prepared(1, 9, "worker-v2", "parser-v2")]))
    await opening


async def test_turn_with_a_request_that_cannot_be_sent_goes_to_another_model_with_its_alias(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.serves("v1")
    ask = stage.process.bus.ask

    def fail(*_: object) -> Callable[[], None]:
        monkeypatch.setattr(stage.process.bus, "ask", ask)
        stage.serves("v1", draining=True)
        stage.serves("v2")
        raise Unavailable("the connection to the bus is down")

    monkeypatch.setattr(stage.process.bus, "ask", fail)
    opening = asyncio.create_task(stage.opened(Conversation("coder", []), Sink(), "a"))
    await eventually(lambda: len(stage.process.bus.requests) == 1)
    (request,) = stage.process.bus.requests
    assert (request.conversation.model, request.attempt) == ("v2", 2)
    stage.send(("a", [Prepared(1, 9, "worker-v2", "parser-v2")]), attempt=2)
    await opening
    assert stage.gateway.turns.by_id["a"].card.name == "v2"


async def cut_drain(gateway: BusGateway) -> None:
    """Drains until the time for it is over."""
    drain = asyncio.create_task(gateway.drain())
    await asyncio.sleep(0)
    drain.cancel()
    await asyncio.gather(drain, return_exceptions=True)


async def test_turn_that_waits_for_a_worker_ends_at_once_where_the_drain_is_cut(
    stage: Stage,
) -> None:
    stage.process.cut_off = True
    sink = Sink()
    opening = asyncio.create_task(stage.opened(Conversation("m", []), sink, "a"))
    await eventually(lambda: stage.gateway.running == 1)
    await cut_drain(stage.gateway)
    with pytest.raises(Unavailable, match="this server was shut down"):
        await asyncio.wait_for(opening, 60)
    assert [type(event).__name__ for event in sink.events] == ["Failed"]
    assert stage.process.bus.requests == []


async def test_ended_turn_is_not_requested_again(stage: Stage) -> None:
    sink, opening = await stage.begin("a")
    stage.refuse("a")
    await eventually(lambda: ("a", 1) in stage.cancels())
    await cut_drain(stage.gateway)  # in the pause before the same preprocessor is tried again
    with pytest.raises(Unavailable, match="this server was shut down"):
        await asyncio.wait_for(opening, 60)
    assert len(sink.events) == len(stage.process.bus.requests) == 1


async def test_turn_that_resumes_is_not_requested_where_the_drain_is_cut(stage: Stage) -> None:
    sink = await stage.open("a")
    stage.process.cut_off = True
    stage.send(("a", [Interrupted("worker-1", pack_ids([7]), ErrorInfo(ErrorKind.ENGINE, "died"))]))
    await asyncio.sleep(0)
    await cut_drain(stage.gateway)
    await asyncio.wait_for(asyncio.gather(*stage.process.tasks, return_exceptions=True), 60)
    assert [type(event).__name__ for event in sink.events] == ["BlockStart", "Failed"]
    assert len(stage.process.bus.requests) == 1


async def test_timeout_in_the_tick_of_a_refusal_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preprocessor_client, "PREPARE_TIMEOUT_S", 0.5)
    stage = Stage(FrontendConfig(attempts=1))
    await stage.gateway.start()
    _, opening = await stage.begin("a")
    asyncio.get_running_loop().call_soon(stage.refuse, "a")
    time.sleep(0.6)  # noqa: ASYNC251 - the timeout is to be due in the same tick
    monkeypatch.setattr(preprocessor_client, "PREPARE_TIMEOUT_S", 60.0)
    await eventually(lambda: len(stage.process.bus.requests) == 2)
    stage.send(("a", [Prepared(1, 9, "worker-1", "parser-1")]), attempt=2)
    await opening
