"""Event frames: every turn gets its own events, once and in order."""

import asyncio
import base64
from itertools import count
from typing import Any, Literal

import pytest
import structlog

from schemas import subjects
from schemas.control import VISION, Cancel, ModelCard, Replay
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
    BrokenCall,
    Delta,
    Failed,
    Finish,
    FinishReason,
    Interrupted,
    LoggedEvent,
    Prepared,
    TurnEvent,
    Usage,
)
from schemas.frames import EventEntry, EventFrame
from schemas.notices import SessionPlaced
from schemas.requests import TurnRequest
from schemas.session import placement_key
from schemas.token_ids import pack_ids
from services.frontend.content.image import ImageSource, InlineImage
from services.frontend.gateway import preprocessor_client, turn_table
from services.frontend.gateway.gateway import BusGateway
from services.frontend.gateway.pipeline import BusPipeline
from services.frontend.http.auth import anyone
from services.frontend.media.image_reader import PutImage
from services.frontend.peers import BusPeers
from services.frontend.turns.interfaces import Admitted, OpenTurn
from services.runtime.config.frontend import FrontendConfig
from tests.kit.clock import LoopClock
from tests.kit.frontend import admission
from tests.kit.pdf_files import PNG
from tests.kit.process import FakeProcess, announce
from tests.kit.sinks import RecordingSink
from tests.kit.waiting import LIMIT_S, eventually

FINISH = Finish(FinishReason.STOP, 1, Usage(prompt=1, output=1))
ASKED = Conversation("m", [])


class Stage:
    """A gateway with open turns; the test plays its preprocessor and its parser."""

    def __init__(self, config: FrontendConfig | None = None) -> None:
        self.process = FakeProcess(config)
        process: Any = self.process
        self.pipeline = BusPipeline(process, self.process.config, BusPeers(process))
        self.gateway: BusGateway = self.pipeline.gateway
        self.put_image: PutImage | None = None
        self.frames = count(1)

    async def admitted(self, conversation: Conversation) -> Admitted:
        return await admission(self.pipeline, self.put_image).admit(conversation, anyone())

    async def opened(self, conversation: Conversation, sink: RecordingSink, turn: str) -> OpenTurn:
        admitted = await self.admitted(conversation)
        return await self.gateway.open(admitted, sink, turn_id=turn)

    async def begin(
        self, turn: str, conversation: Conversation = ASKED
    ) -> tuple[RecordingSink, asyncio.Task[OpenTurn]]:
        """Requests a turn; the preprocessor has it."""
        sink, before = RecordingSink(), len(self.process.bus.requests)
        opening = asyncio.create_task(self.opened(conversation, sink, turn))
        await self.request(before + 1)
        return sink, opening

    async def open(self, turn: str) -> RecordingSink:
        """Opens a turn, and starts its first block."""
        sink, opening = await self.begin(turn)
        self.prepare(turn, BlockStart(0, "text"))
        await opening
        return sink

    async def request(self, number: int) -> TurnRequest:
        """Waits for the request with this number, the last one."""
        requests = self.process.bus.requests
        await eventually(lambda: len(requests) >= number)
        assert len(requests) == number
        return requests[-1]

    def send(self, *entries: EventEntry) -> None:
        frame = EventFrame("parser-1", next(self.frames), [*entries])
        self.process.deliver(subjects.events(self.process.id), frame)

    def event(self, turn: str, *events: TurnEvent, attempt: int = 1) -> None:
        self.send(EventEntry(turn, attempt, [*events]))

    def prepare(self, turn: str, *events: TurnEvent, attempt: int = 1, worker: str = "1") -> None:
        prepared = Prepared(1, 9, f"worker-{worker}", "parser-1")
        self.event(turn, prepared, *events, attempt=attempt)

    def refuse(
        self,
        turn: str,
        *,
        attempt: int = 1,
        kind: ErrorKind = ErrorKind.UNAVAILABLE,
        code: str | None = None,
    ) -> None:
        """The preprocessor refuses the attempt, by default as it found no worker."""
        refused = Failed(ErrorInfo(kind, "no", code=code))
        frame = EventFrame("preprocessor-1", 0, [EventEntry(turn, attempt, [refused])])
        self.process.deliver(subjects.events(self.process.id), frame)

    def interrupt(self, turn: str, attempt: int = 1) -> None:
        """The turn's worker died after one token."""
        died = ErrorInfo(ErrorKind.ENGINE, "died")
        self.event(turn, Interrupted("worker-1", pack_ids([7]), died), attempt=attempt)

    def serves(self, name: str, *features: str, draining: bool = False) -> None:
        """All stages of a model with the alias `coder` send a heartbeat."""
        card = ModelCard(name, aliases=["coder"], features=[*features])
        announce(self.process.registry, card, name, draining=draining)

    def cancels(self) -> list[tuple[str, int]]:
        return [(one.turn, one.attempt) for one in self.process.published_of(Cancel)]


@pytest.fixture
async def stage() -> Stage:
    stage = Stage()
    await stage.gateway.start()
    return stage


async def test_each_turn_gets_its_own_deltas_in_order(stage: Stage) -> None:
    one, two = await stage.open("a"), await stage.open("b")
    for at, letter in enumerate("hello"):
        stage.send(
            EventEntry("a", 1, [Delta(0, at, letter)]),
            EventEntry("b", 1, [Delta(0, at, letter.upper())]),
        )
    assert (one.text, two.text) == ("hello", "HELLO")
    stage.event("a", BlockStop(0, length=5), FINISH)
    assert one.end == FINISH
    assert stage.gateway.running == 1


async def test_sink_is_opened_once_and_first(stage: Stage) -> None:
    sink = await stage.open("a")
    assert [prepared.worker for prepared in sink.prepared] == ["worker-1"]
    stage.interrupt("a")
    again = await stage.request(2)
    assert (again.attempt, again.resume, again.avoid) == (2, pack_ids([7]), ["worker-1"])
    stage.prepare("a", Delta(0, 0, "x"), attempt=2, worker="2")
    assert sink.text == "x"
    assert len(sink.prepared) == 1
    await asyncio.gather(*stage.process.tasks)


async def test_broken_call_is_decoded_again_on_any_worker(stage: Stage) -> None:
    """It is not a failure: with one attempt allowed, the turn goes on, and again after a death."""
    stage = Stage(FrontendConfig(attempts=2))
    await stage.gateway.start()
    sink = await stage.open("a")
    broken = BrokenCall("unreadable", 5, 2)
    died = ErrorInfo(ErrorKind.ENGINE, "no worker")
    stage.event("a", Delta(0, 0, "x"))
    with structlog.testing.capture_logs() as log:
        stage.event("a", Interrupted("worker-1", pack_ids([7]), died, 0, 1, broken))
    again = await stage.request(2)
    assert (again.attempt, again.resume, again.avoid) == (2, pack_ids([7]), [])
    assert again.broken_call == broken
    assert ("a", 1) in stage.cancels()
    assert [line for line in log if line["event"] == "frontend.broken_call"] == [
        {
            "event": "frontend.broken_call",
            "log_level": "info",
            "turn": "a",
            "cause": "unreadable",
            "tokens": 1,
            "discarded": 5,
        }
    ]
    stage.prepare("a", BlockStart(0, "text"), Delta(0, 0, "xy"), attempt=2)
    stage.event("a", Interrupted("worker-1", pack_ids([7, 8]), died, 0, 2), attempt=2)
    third = await stage.request(3)
    assert (third.resume, third.avoid) == (pack_ids([7, 8]), ["worker-1"])
    assert third.broken_call == broken
    stage.prepare("a", BlockStop(0, length=2), FINISH, attempt=3)
    assert (sink.text, sink.end) == ("xy", FINISH)
    await asyncio.gather(*stage.process.tasks)


async def test_broken_call_that_no_process_decodes_again_is_sent(stage: Stage) -> None:
    """Its parser has handed over what the client would have got without the second attempt."""
    rest: list[LoggedEvent] = [
        BlockStop(0, length=1),
        BlockStart(1, "tool_use", "run", "c"),
        Delta(1, 0, "{"),
        BlockStop(1, complete=False, length=1),
        Finish(FinishReason.STOP, 2, Usage(1, output=9)),
    ]
    died = ErrorInfo(ErrorKind.ENGINE, "broken")
    nothing: list[LoggedEvent] = []
    for turn, events in (("a", rest), ("b", nothing)):
        before = len(stage.process.bus.requests)
        sink = await stage.open(turn)
        stage.event(turn, Delta(0, 0, "x"))
        broken = BrokenCall("unreadable", 5)
        stage.event(turn, Interrupted("worker-1", pack_ids([7]), died, 0, 1, broken, events))
        await stage.request(before + 2)
        stage.refuse(turn, attempt=2, kind=ErrorKind.OVERLOADED)
        await asyncio.gather(*stage.process.tasks)
        assert stage.gateway.running == 0
        if events:
            assert (sink.text, sink.end) == ("x{", rest[-1])
        else:
            assert isinstance(sink.end, Failed)


async def test_call_that_was_sent_in_part_goes_on_where_it_is(stage: Stage) -> None:
    """The first worker guided calls, and died in one; the next one does not guide them."""
    sink = await stage.open("a")
    call = BlockStart(1, "tool_use", "run", "c")
    stage.event("a", Delta(0, 0, "x"), BlockStop(0, length=1), call, Delta(1, 0, "{"))
    died = ErrorInfo(ErrorKind.ENGINE, "died")
    stage.event("a", Interrupted("worker-1", pack_ids([7, 8, 9]), died, 1, 1))
    await stage.request(2)
    stage.prepare("a", attempt=2, worker="2")
    broken = BrokenCall("unreadable", 5)  # from token 8 on
    stage.event("a", Interrupted("worker-2", pack_ids([7]), died, 0, 1, broken), attempt=2)
    again = await stage.request(3)
    assert again.resume == pack_ids([7, 8, 9])
    assert again.broken_call == BrokenCall("unreadable", 3)
    stage.prepare("a", Delta(1, 1, "}"), BlockStop(1, True, 2), FINISH, attempt=3)
    assert sink.text == "x{}"
    await asyncio.gather(*stage.process.tasks)


async def test_each_character_is_passed_once_and_a_gap_is_replayed(stage: Stage) -> None:
    sink = await stage.open("a")
    for at, text in ((0, "hel"), (0, "hel"), (1, "ello"), (5, "!")):
        stage.event("a", Delta(0, at, text))
    assert sink.text == "hello!"
    assert stage.process.published_of(Replay) == []
    stage.event("a", Delta(0, 8, "o"))
    stage.event("a", Delta(1, 2, "x"))
    assert sink.text == "hello!"
    (replay,) = stage.process.published_of(Replay)
    (position,) = replay.streams
    assert (position.turn, position.block, position.offset) == ("a", 0, 6)
    stage.event("a", Delta(0, 6, " so"), BlockStop(0, length=9))
    stage.event("a", Delta(0, 9, "late"))
    stage.event("a")
    assert sink.text == "hello! so"


async def test_events_of_another_attempt_are_ignored_and_cancelled_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        stage.event("gone", Delta(0, 0, "x"))
    assert stage.cancels() == [("gone", 1)], "not at once"
    monkeypatch.setattr(turn_table, "CANCEL_AGAIN_S", 0.0)
    stage = Stage()
    await stage.gateway.start()
    sink = await stage.open("a")
    stage.interrupt("a")
    await stage.request(2)
    stage.event("a", Delta(0, 0, "old"))
    assert sink.text == ""
    assert stage.cancels() == [("a", 1), ("a", 1)]


async def test_failure_of_one_turn_does_not_affect_the_others(stage: Stage) -> None:
    one, two = await stage.open("a"), await stage.open("b")
    one.broken = ZeroDivisionError()
    with structlog.testing.capture_logs():
        stage.send(EventEntry("a", 1, [Delta(0, 0, "x")]), EventEntry("b", 1, [Delta(0, 0, "y")]))
    assert two.text == "y"
    assert stage.gateway.running == 1
    assert one.kinds == ["BlockStart", "Failed"]


async def test_late_request_is_not_tried_again(stage: Stage) -> None:
    _, opening = await stage.begin("a")
    stage.refuse("a", kind=ErrorKind.TIMED_OUT, code=DEADLINE_PASSED)
    with pytest.raises(TimedOut, match="no"):
        await asyncio.wait_for(opening, LIMIT_S)
    await stage.request(1)
    assert stage.gateway.running == 0


async def test_missing_image_is_stored_again_once(stage: Stage) -> None:
    stored: list[str] = []

    async def put(image: str, data: bytes) -> None:
        assert data == PNG
        stored.append(image)

    stage.put_image = put
    announce(stage.process.registry, ModelCard("m", features=[VISION]))
    source = ImageSource(base64.b64encode(PNG), Invalid)
    image = InlineImage("image", "image/png", len(PNG), source=source)
    _, opening = await stage.begin("a", Conversation("m", [Message("user", [image])]))
    first = stage.process.bus.requests[0].conversation
    assert [part.hash for part in first.messages[0].parts if isinstance(part, Media)] == stored
    assert len(stored) == 1
    stage.refuse("a", code=MEDIA_MISSING)
    assert (await stage.request(2)).conversation == first
    assert stored == stored[:1] * 2
    stage.refuse("a", attempt=2, code=MEDIA_MISSING)
    with pytest.raises(Unavailable):
        await asyncio.wait_for(opening, LIMIT_S)
    assert len(stored) == 2
    assert stage.gateway.running == 0


async def test_helpers_of_an_agent_meet_at_one_preprocessor(stage: Stage) -> None:
    for number in range(2, 9):
        announce(stage.process.registry, ModelCard("m"), str(number), stages=("preprocessor",))
    places: dict[str, set[str]] = {}
    for number in range(24):
        parent = f"session-{number % 6}"
        asked = Conversation("m", [], client=Client(f"s{number}", parent=parent, kind="helper"))
        await stage.begin(f"{number}", asked)
        places.setdefault(parent, set()).add(stage.process.bus.subjects[-1])
    assert {len(found) for found in places.values()} == {1}
    assert len(set.union(*places.values())) > 1


@pytest.mark.parametrize("features", [[], [VISION]])
async def test_turn_for_an_alias_moves_to_another_model_if_its_own_drains(
    stage: Stage, features: list[str]
) -> None:
    """Which gets images only with vision."""
    image = Media("image", "image/png", 74, hash="h", width=2, height=2)
    asked = Conversation("coder", [Message("user", [image])], client=Client(session="s"))
    stage.serves("v1", VISION)
    admitted = await stage.admitted(asked)
    assert admitted.card.name == "v1"
    stage.serves("v1", VISION, draining=True)
    stage.serves("v2", *features)
    opening = asyncio.create_task(stage.gateway.open(admitted, RecordingSink(), turn_id="a"))
    request = await stage.request(1)
    stage.prepare("a", worker="v2")
    await opening
    assert request.conversation.model == stage.gateway.turns.by_id["a"].card.name == "v2"
    assert SessionPlaced(placement_key(asked), "coder", "v2") in stage.process.published
    expected = image if features else Media("image", "image/png", 74)
    assert request.conversation.messages[0].parts == [expected]


async def test_request_that_cannot_be_sent_is_sent_again(stage: Stage) -> None:
    def fail() -> None:
        raise Unavailable("the connection to the bus is down")

    stage.process.bus.fail = fail
    _, opening = await stage.begin("a")
    assert [request.attempt for request in stage.process.bus.requests] == [2]
    stage.prepare("a", attempt=2)
    await opening


async def cut_drain(gateway: BusGateway) -> None:
    """Drains until the time for it is over."""
    drain = asyncio.create_task(gateway.drain())
    await asyncio.sleep(0)
    drain.cancel()
    await asyncio.gather(drain, return_exceptions=True)


@pytest.mark.parametrize("requested", [False, True])
async def test_turn_that_waits_ends_at_once_where_the_drain_is_cut(
    stage: Stage, requested: bool
) -> None:
    """For a worker, or in the pause before the same preprocessor is tried again."""
    stage.process.cut_off = not requested
    sink = RecordingSink()
    opening = asyncio.create_task(stage.opened(ASKED, sink, "a"))
    await eventually(lambda: stage.gateway.running == 1)
    if requested:
        await stage.request(1)
        stage.refuse("a")
        await eventually(lambda: ("a", 1) in stage.cancels())
    await cut_drain(stage.gateway)
    with pytest.raises(Unavailable, match="this server was shut down"):
        await asyncio.wait_for(opening, LIMIT_S)
    assert sink.kinds == ["Failed"]
    assert len(stage.process.bus.requests) == requested


async def test_turn_that_resumes_is_not_requested_where_the_drain_is_cut(stage: Stage) -> None:
    sink = await stage.open("a")
    stage.process.cut_off = True
    stage.interrupt("a")
    await asyncio.sleep(0)
    await cut_drain(stage.gateway)
    await asyncio.wait_for(asyncio.gather(*stage.process.tasks, return_exceptions=True), LIMIT_S)
    assert sink.kinds == ["BlockStart", "Failed"]
    assert len(stage.process.bus.requests) == 1


async def test_timeout_in_the_tick_of_a_refusal_is_not_counted(
    loop_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preprocessor_client, "PREPARE_TIMEOUT_S", 0.5)
    stage = Stage(FrontendConfig(attempts=1))
    await stage.gateway.start()
    _, opening = await stage.begin("a")
    asyncio.get_running_loop().call_soon(stage.refuse, "a")
    loop_clock.passed += 0.6  # the timeout is due in the same tick
    await loop_clock.until(lambda: len(stage.process.bus.requests) == 2)
    stage.prepare("a", attempt=2)
    await opening


@pytest.mark.parametrize("left", ["worker", "parser"])
async def test_process_of_another_model_that_leaves_fails_no_attempt(
    stage: Stage, loop_clock: LoopClock, left: Literal["worker", "parser"]
) -> None:
    stage.serves("other")
    _, opening = await stage.begin("a")
    for name, process in (("other", "other"), ("m", "1")):
        card = ModelCard(name)
        announce(stage.process.registry, card, process, stages=(left,), leaving=True)
        announce(stage.process.registry, ModelCard("m"), "2")
        loop_clock.passed += 10.0
        for _ in range(5):
            await asyncio.sleep(0)
        assert stage.gateway.turns.by_id["a"].failures == (name == "m")
    opening.cancel()
    await asyncio.wait([opening])


async def test_a_draining_frontend_is_not_ready() -> None:
    stage = Stage()
    assert stage.pipeline.readiness()["ready"] is True
    stage.process.draining = True
    readiness = stage.pipeline.readiness()
    assert (readiness["ready"], readiness["draining"]) == (False, True)
