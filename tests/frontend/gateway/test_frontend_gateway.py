"""The gateway ends turns that are being opened: in a drain, and for the reason of a cancellation."""

import asyncio

import pytest

from schemas.control import Cancel
from schemas.errors import Unavailable
from services.frontend.gateway.gateway import BusGateway
from tests.kit.gateway import ASKED, Stage
from tests.kit.sinks import RecordingSink
from tests.kit.waiting import LIMIT_S, eventually


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


@pytest.mark.parametrize("message", ["timeout", "slow_reader", None])
async def test_turn_is_cancelled_for_the_reason_of_its_opening(
    stage: Stage, message: str | None
) -> None:
    _, opening = await stage.begin("a")
    opening.cancel(message)
    with pytest.raises(asyncio.CancelledError):
        await opening
    (cancel,) = stage.process.published_of(Cancel)
    assert cancel.reason == (message or "hangup")


async def test_a_draining_frontend_is_not_ready() -> None:
    stage = Stage()
    assert stage.pipeline.readiness()["ready"] is True
    stage.process.draining = True
    readiness = stage.pipeline.readiness()
    assert (readiness["ready"], readiness["draining"]) == (False, True)
