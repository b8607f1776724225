"""Turns on their way to workers: acceptances, refusals, lost workers, holds and deadlines."""

import asyncio

import pytest

from schemas.control import Heartbeat
from schemas.errors import (
    DEADLINE_PASSED,
    MEDIA_MISSING,
    ContextOverflow,
    EngineFailed,
    ErrorKind,
    Invalid,
    NotFound,
    Overloaded,
    TimedOut,
    TurnwireError,
    Unavailable,
)
from schemas.events import PromptImage
from schemas.requests import GenerateReply, GenerateRequest
from schemas.token_ids import unpack_ids
from services.preprocessor.routing.leads import MAX_HOLD_S
from services.preprocessor.routing.worker_links import IMAGES_TIMEOUT_S, TAKE_TIMEOUT_S
from tests.kit.clock import LoopClock
from tests.kit.preprocessor import GONE, Sending, failure_of
from tests.kit.waiting import eventually

GROUP = range(1000, 1160)
"""The beginning of the prompts of a group: ten blocks."""


def refusal(worker: str, error: TurnwireError) -> GenerateReply:
    return GenerateReply(worker, error.info)


async def test_turn_goes_to_the_best_worker_with_its_shard() -> None:
    sending = Sending("a", "b")
    placing = await sending.send(sending.turn("t", [4, 5, 6], cache_salt="mine"))

    [(worker, request)] = sending.bus.requests
    assert (worker, request.parser, request.turn) == ("worker-a", "parser-1", "t")
    assert unpack_ids(request.prompt) == [4, 5, 6]
    assert (request.timeout_s, request.notice, request.held_for) == (None, "", "")
    assert request.cache_salt == "\nmine", "that of no tenant"
    assert request.time > 0
    assert placing.places == [("worker-a", "parser-1")]
    assert placing.refusals == []
    assert sending.next_prompts.notes == {"t": "worker-a"}


async def test_turn_that_a_worker_has_counts_there() -> None:
    sending = Sending("a", "b")
    assert [await sending.next_worker(name) for name in "tuv"] == [
        "worker-a",
        "worker-b",
        "worker-a",
    ]


@pytest.mark.parametrize(
    "error",
    [
        Overloaded("its queue is full"),
        Unavailable("it is going away"),
        ContextOverflow("its window is too small"),
        NotFound("the adapter was unloaded"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_next_worker_gets_a_turn_that_one_refuses(error: TurnwireError) -> None:
    sending = Sending("a", "b", "c")
    sending.bus.replies["worker-a"] = refusal("worker-a", error)
    placing = await sending.send(sending.turn("t"))

    assert sending.bus.workers == ["worker-a", "worker-b"]
    assert placing.refusals == [("worker-a", error.info)]
    assert placing.places == [("worker-b", "parser-1")]
    assert sending.next_prompts.notes == {"t": "worker-b"}

    sending.bus.replies.clear()
    assert await sending.next_worker("u") == "worker-a", "the refused turn does not count there"


@pytest.mark.parametrize(
    "error",
    [
        Invalid("a field is wrong"),
        EngineFailed("the engine failed"),
        Unavailable("an image is gone", code=MEDIA_MISSING),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_no_other_worker_gets_a_turn_that_is_refused_for_its_own_faults(
    error: TurnwireError,
) -> None:
    sending = Sending("a", "b")
    sending.bus.replies["worker-a"] = refusal("worker-a", error)
    with pytest.raises(type(error)) as failure:
        await sending.send(sending.turn("t"))

    assert failure.value.info == error.info
    assert sending.bus.workers == ["worker-a"]


async def test_turn_that_all_workers_refuse_fails_with_the_last_refusal() -> None:
    sending = Sending("a", "b")
    sending.bus.replies["worker-a"] = refusal("worker-a", Overloaded("full"))
    sending.bus.replies["worker-b"] = refusal("worker-b", ContextOverflow("too long"))
    with pytest.raises(ContextOverflow, match="too long"):
        await sending.send(sending.turn("t"))
    assert sending.bus.workers == ["worker-a", "worker-b"]
    assert sending.next_prompts.notes == {}


async def test_next_worker_gets_the_turn_of_one_that_is_gone() -> None:
    sending = Sending("a", "b")
    sending.bus.replies["worker-a"] = GONE
    placing = await sending.send(sending.turn("t"))

    [(worker, error)] = placing.refusals
    assert (worker, error.kind) == ("worker-a", ErrorKind.UNAVAILABLE)
    assert error.retry_after_s is not None
    assert placing.places == [("worker-b", "parser-1")]


@pytest.mark.parametrize("images", [False, True])
async def test_attempt_fails_if_a_worker_does_not_reply_in_time(
    loop_clock: LoopClock, images: bool
) -> None:
    """The worker may have the turn, so no other one gets it."""
    sending = Sending("a", "b")
    sending.bus.replies["worker-a"] = None
    placeholder = [PromptImage("ab" * 32, 0, 1)] if images else []
    task = await sending.sending(sending.turn("t", images=placeholder))

    await loop_clock.until(task.done)
    assert isinstance(await failure_of(task), TimedOut)
    assert sending.bus.limits_s == [IMAGES_TIMEOUT_S if images else TAKE_TIMEOUT_S]
    assert sending.bus.workers == ["worker-a"]

    sending.bus.replies.clear()
    assert await sending.next_worker("u") == "worker-a", "the failed turn does not count there"


async def test_turn_that_is_cancelled_before_the_reply_does_not_count() -> None:
    sending = Sending("a", "b")
    sending.bus.replies["worker-a"] = None
    task = await sending.sending(sending.turn("t"))
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    sending.bus.replies.clear()
    assert await sending.next_worker("u") == "worker-a"


async def test_turn_fails_where_no_shard_is() -> None:
    sending = Sending("a")
    sending.registry.receive(Heartbeat("parser", "parser-1", leaving=True), sending.now())
    with pytest.raises(Unavailable, match="no parser"):
        await sending.send(sending.turn("t"))
    assert sending.bus.requests == []


# -- deadlines


async def test_worker_gets_the_time_that_is_left_until_the_deadline() -> None:
    sending = Sending("a")
    await sending.send(sending.turn("t", deadline=sending.now() + 60))
    [(_, request)] = sending.bus.requests
    assert request.timeout_s is not None
    assert 0 < request.timeout_s <= 60


# -- holds


async def led(sending: Sending) -> GenerateRequest:
    """Sends the first turn of a group; returns its request, which a worker has."""
    sending.bus.replies["worker-a"] = GenerateReply("worker-a", expected_cached=0)
    await sending.send(sending.turn("lead", [*GROUP, 1]))
    [(_, request)] = sending.bus.requests
    return request


async def test_turn_is_sent_when_its_beginning_is_computed() -> None:
    sending = Sending("a")
    lead = await led(sending)
    assert lead.notice_tokens == sending.leads.hold_tokens
    task = asyncio.create_task(sending.send(sending.turn("follower", [*GROUP, 2])))
    await eventually(lambda: sending.leads.waiting.total() == 1)
    assert len(sending.bus.requests) == 1

    sending.bus.notify(lead, computed=True)
    placing = await task
    _, (_, follower) = sending.bus.requests
    assert (follower.held_for, placing.holds) == ("lead", ["lead"])
    assert follower.held_s > 0
    assert (follower.notice, follower.notice_tokens) == ("", 0), "its own part is short"
    assert sending.holding.open_leads == 0


@pytest.mark.parametrize("how", ["refused", "cancelled"])
async def test_one_follower_leads_if_no_worker_takes_its_lead(how: str) -> None:
    sending = Sending("a")
    sending.bus.replies["worker-a"] = None
    lead = await sending.sending(sending.turn("lead", [*GROUP, 1]))
    followers = [
        asyncio.create_task(sending.send(sending.turn(f"follower {number}", [*GROUP, number])))
        for number in (2, 3)
    ]
    await eventually(lambda: sending.leads.waiting.total() == 2)

    if how == "refused":
        sending.bus.reply(refusal("worker-a", Overloaded("full")))
        assert isinstance(await failure_of(lead), Overloaded)
    else:
        lead.cancel()
    await eventually(lambda: len(sending.bus.requests) == 2)
    request = sending.bus.requests[1][1]
    assert (request.turn, request.held_for) == ("follower 2", "lead")
    assert request.notice != ""
    assert sending.leads.waiting.total() == 1, "the other one waits for it"
    for follower in followers:
        follower.cancel()


async def test_followers_of_a_turn_that_fails_before_it_is_sent_go_on() -> None:
    sending = Sending("a")
    await led(sending)
    followers = [
        asyncio.create_task(sending.send(sending.turn(f"follower {number}", [*GROUP, number])))
        for number in (2, 3)
    ]
    await eventually(lambda: sending.leads.waiting.total() == 2)

    lost_at = sending.now()
    sending.registry.receive(Heartbeat("worker", "worker-a", leaving=True), lost_at)
    for follower in followers:
        assert isinstance(await failure_of(follower), Unavailable)
    assert sending.now() < lost_at + MAX_HOLD_S / 2, "they did not wait as long as they may"
    assert sending.holding.open_leads == 0


async def test_follower_is_sent_if_its_lead_goes_elsewhere() -> None:
    """The follower waits for a lead on the first worker, which refuses that lead."""
    sending = Sending("a", "b")
    sending.bus.replies["worker-a"] = None
    lead = await sending.sending(sending.turn("lead", [*GROUP, 1]))
    follower = asyncio.create_task(sending.send(sending.turn("follower", [*GROUP, 2])))
    await eventually(lambda: sending.leads.waiting.total() == 1)

    sending.bus.replies["worker-b"] = GenerateReply("worker-b", expected_cached=0)
    sending.bus.reply(refusal("worker-a", Overloaded("full")))
    assert (await lead).places == [("worker-b", "parser-1")]
    request = next(r for worker, r in sending.bus.requests if worker == "worker-b")
    assert (request.turn, request.notice != "") == ("lead", True), "it leads on the second worker"
    follower.cancel()


async def test_turn_is_not_held_beyond_its_deadline(loop_clock: LoopClock) -> None:
    sending = Sending("a")
    await led(sending)
    deadline = loop_clock.time() + 5
    late = sending.turn("follower", [*GROUP, 2], deadline=deadline)
    task = asyncio.create_task(sending.send(late))
    await loop_clock.until(task.done)

    error = await failure_of(task)
    assert isinstance(error, TimedOut)
    assert error.info.code == DEADLINE_PASSED
    assert deadline <= loop_clock.time() < deadline + 1
    assert len(sending.bus.requests) == 1
