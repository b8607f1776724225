"""Attempts of turns: which ends of one are followed by another, where, and after which tokens."""

import asyncio
import base64

import pytest
import structlog

from schemas.control import INNER_STAGES, VISION, Heartbeat, ModelCard
from schemas.conversation import Client, Conversation, Media, Message, ToolSpec
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
    Usage,
)
from schemas.notices import SessionPlaced
from schemas.session import placement_key
from schemas.token_ids import pack_ids
from services.frontend.content.image import ImageSource, InlineImage
from services.frontend.gateway import preprocessor_client
from services.frontend.http.auth import Caller, anyone
from services.frontend.http.errors import ForbiddenModel
from services.frontend.http.keys import Key
from services.rollouts.rollout import Rollout
from services.runtime.config.frontend import FrontendConfig
from tests.kit.clock import LoopClock
from tests.kit.gateway import Stage
from tests.kit.pdf_files import PNG
from tests.kit.process import announce
from tests.kit.sinks import RecordingSink
from tests.kit.waiting import LIMIT_S, eventually

FINISH = Finish(FinishReason.STOP, 1, Usage(prompt=1, output=1))


async def test_broken_call_is_decoded_again_on_any_worker(stage: Stage) -> None:
    """It is not a failure: with one attempt allowed, the turn goes on, and again after a death."""
    stage = Stage(FrontendConfig(attempts=2))
    await stage.gateway.start()
    sink = await stage.open("a")
    broken = BrokenCall("unreadable", tokens=5, cached=2)
    died = ErrorInfo(ErrorKind.ENGINE, "no worker")
    stage.event("a", Delta(0, 0, "x"))
    with structlog.testing.capture_logs() as log:
        stage.event(
            "a", Interrupted("worker-1", pack_ids([7]), died, block=0, offset=1, broken_call=broken)
        )
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
    stage.event("a", Interrupted("worker-1", pack_ids([7, 8]), died, block=0, offset=2), attempt=2)
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
        Finish(FinishReason.STOP, 2, Usage(prompt=1, output=9)),
    ]
    died = ErrorInfo(ErrorKind.ENGINE, "broken")
    nothing: list[LoggedEvent] = []
    for turn, events in (("a", rest), ("b", nothing)):
        before = len(stage.process.bus.requests)
        sink = await stage.open(turn)
        stage.event(turn, Delta(0, 0, "x"))
        broken = BrokenCall("unreadable", tokens=5)
        stage.event(
            turn,
            Interrupted(
                "worker-1", pack_ids([7]), died, block=0, offset=1, broken_call=broken, rest=events
            ),
        )
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
    stage.event("a", Interrupted("worker-1", pack_ids([7, 8, 9]), died, block=1, offset=1))
    await stage.request(2)
    stage.prepare("a", attempt=2, worker="2")
    broken = BrokenCall("unreadable", tokens=5)  # from token 8 on
    stage.event(
        "a",
        Interrupted("worker-2", pack_ids([7]), died, block=0, offset=1, broken_call=broken),
        attempt=2,
    )
    again = await stage.request(3)
    assert again.resume == pack_ids([7, 8, 9])
    assert again.broken_call == BrokenCall("unreadable", tokens=3)
    stage.prepare("a", Delta(1, 1, "}"), BlockStop(1, True, 2), FINISH, attempt=3)
    assert sink.text == "x{}"
    await asyncio.gather(*stage.process.tasks)


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
    assert request.conversation.model == stage.gateway.table.by_id["a"].card.name == "v2"
    assert stage.gateway.table.by_id["a"].moved_to == "v2"
    assert SessionPlaced(placement_key(asked), "coder", "v2") in stage.process.published
    expected = image if features else Media("image", "image/png", 74)
    assert request.conversation.messages[0].parts == [expected]


def caller_of(key: Key | None = None, rollout: Rollout | None = None) -> Caller:
    caller = anyone()
    caller.key, caller.rollout = key, rollout
    return caller


STAYING = {
    "a model that its key may not use": (caller_of(Key("ci", b"", models=("v1",))), ()),
    "a model that would not see its tools": (caller_of(), (ToolSpec("ls"),)),
    "another model than the samples of its rollout": (
        caller_of(rollout=Rollout("r", 0.0, None)),
        (),
    ),
}


@pytest.mark.parametrize("why", STAYING)
async def test_turn_for_an_alias_waits_for_its_own_model_rather_than_move_to(why: str) -> None:
    """A turn only ever runs on a model that its key may use, and that can do what it needs."""
    caller, tools = STAYING[why]
    stage = Stage()
    await stage.gateway.start()
    asked = Conversation("coder", [], tools=[*tools], client=Client(session="s"))
    stage.serves("v1", tools=True)
    admitted = await stage.admitted(asked, caller)
    stage.serves("v1", tools=True, draining=True)
    stage.serves("v2")
    sink = RecordingSink()
    opening = asyncio.create_task(stage.gateway.open(admitted, sink, turn_id="a"))
    await eventually(lambda: "a" in stage.gateway.table.by_id)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not stage.process.bus.requests
    stage.serves("v1", tools=True)
    assert (await stage.request(1)).conversation.model == "v1"
    stage.prepare("a", worker="v1")
    await opening
    assert [prepared.model for prepared in sink.prepared] == [""]


async def test_session_of_an_alias_gets_a_model_that_its_key_may_use(stage: Stage) -> None:
    caller = caller_of(Key("ci", b"", models=("v1",)))
    stage.serves("v1")
    stage.serves("v2")
    for number in range(20):
        asked = Conversation("coder", [], client=Client(session=f"s{number}"))
        assert (await stage.admitted(asked, caller)).card.name == "v1"
    with pytest.raises(ForbiddenModel, match="coder"):
        await stage.admitted(asked, caller_of(Key("ci", b"", models=("v3",))))


async def test_turn_whose_key_may_not_use_the_other_model_fails_without_its_own(
    stage: Stage,
) -> None:
    caller = caller_of(Key("ci", b"", models=("v1",)))
    stage.serves("v1")
    admitted = await stage.admitted(Conversation("coder", [], client=Client("s")), caller)
    for stage_name in INNER_STAGES:
        stage.process.registry.receive(Heartbeat(stage_name, f"{stage_name}-v1", leaving=True), 0.0)
    stage.process.registry.sweep(1.0)
    stage.serves("v2")
    with pytest.raises(Unavailable, match="serves this model"):
        await stage.gateway.open(admitted, RecordingSink(), turn_id="a")
    assert not stage.process.bus.requests


async def test_request_that_cannot_be_sent_is_sent_again(stage: Stage) -> None:
    def fail() -> None:
        raise Unavailable("the connection to the bus is down")

    stage.process.bus.fail = fail
    _, opening = await stage.begin("a")
    assert [request.attempt for request in stage.process.bus.requests] == [2]
    stage.prepare("a", attempt=2)
    await opening


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
