"""Turns on their way to workers: acceptances, refusals, lost workers, holds and deadlines."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from schemas.control import Heartbeat, ModelCard
from schemas.conversation import Sampling
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
from schemas.requests import GenerateReply, GenerateRequest, decode_generate
from schemas.token_ids import pack_ids, unpack_ids
from services.preprocessor.routing.sending import (
    IMAGES_TIMEOUT_S,
    TAKE_TIMEOUT_S,
    UNANSWERED_IMAGES,
    UNANSWERED_REQUESTS,
    encoded_for,
)
from tests.kit.clock import LoopClock
from tests.kit.preprocessor import GONE, RecordedPlacing, Sending
from tests.kit.waiting import eventually

REQUEST = GenerateRequest("t", 1, "m", pack_ids(range(99)), "p", "f", Sampling(), [], Raw(b"null"))
ACCEPTED = GenerateReply("worker-a")
GROUP = range(1000, 1160)
"""The beginning of the prompts of a group: ten blocks."""


def refusal(worker: str, error: TurnwireError) -> GenerateReply:
    return GenerateReply(worker, error.info)


async def ended(task: asyncio.Task[RecordedPlacing]) -> TurnwireError:
    """The error with which a turn ends that no worker takes."""
    with pytest.raises(TurnwireError) as failure:
        await task
    return failure.value


async def test_turn_goes_to_the_best_worker_with_its_shard() -> None:
    sending = Sending("a", "b")
    placing = await sending.send(sending.turn("t", [4, 5, 6]))

    [(worker, request)] = sending.bus.requests
    assert (worker, request.parser, request.turn) == ("worker-a", "parser-1", "t")
    assert unpack_ids(request.prompt) == [4, 5, 6]
    assert (request.timeout_s, request.notice, request.held_for) == (None, "", "")
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
    sending = Sending("a", "b")
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
    sent_at = loop_clock.time()
    task = await sending.sending(sending.turn("t", images=placeholder))

    await loop_clock.until(task.done)
    assert isinstance(await ended(task), TimedOut)
    waited = loop_clock.time() - sent_at
    limit_s = IMAGES_TIMEOUT_S if images else TAKE_TIMEOUT_S
    assert limit_s <= waited < limit_s + 1
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
# --------------------------------------------------------------------------------------------------


async def test_worker_gets_the_time_that_is_left_until_the_deadline() -> None:
    sending = Sending("a")
    await sending.send(sending.turn("t", deadline=sending.now() + 60))
    [(_, request)] = sending.bus.requests
    assert request.timeout_s is not None
    assert 0 < request.timeout_s <= 60


async def test_turn_is_not_sent_after_its_deadline(loop_clock: LoopClock) -> None:
    """A turn waits while a worker has not answered others; then its deadline has passed."""
    sending = Sending("a", "b")
    sending.bus.replies["worker-a"] = None
    sending.registry.receive(Heartbeat("worker", "worker-b", leaving=True), sending.now())
    others = [await sending.sending(sending.turn(f"{i}")) for i in range(UNANSWERED_REQUESTS)]
    deadline = loop_clock.time() + TAKE_TIMEOUT_S / 2
    task = asyncio.create_task(sending.send(sending.turn("late", deadline=deadline)))

    await loop_clock.until(lambda: loop_clock.time() > deadline)
    sending.bus.reply(ACCEPTED)
    error = await ended(task)
    assert isinstance(error, TimedOut)
    assert error.info.code == DEADLINE_PASSED
    assert len(sending.bus.requests) == len(others)
    for other in others:
        other.cancel()


# -- requests without a reply
# --------------------------------------------------------------------------------------------------


async def all_sent_and_one_waits(
    sending: Sending, most: int, **turn: Any
) -> list[asyncio.Task[RecordedPlacing]]:
    """Sends a turn more than a worker has at once; all but one are with the worker."""
    sending.bus.replies["worker-a"] = None
    tasks = [
        asyncio.create_task(sending.send(sending.turn(f"{number}", **turn)))
        for number in range(most + 1)
    ]
    await eventually(lambda: len(sending.bus.requests) == most)
    return tasks


@pytest.mark.parametrize(
    ("most", "images"),
    [(UNANSWERED_REQUESTS, []), (UNANSWERED_IMAGES, [PromptImage("ab" * 32, 0, 1)])],
    ids=["text", "images"],
)
async def test_worker_has_few_requests_at_once(most: int, images: list[PromptImage]) -> None:
    sending = Sending("a")
    tasks = await all_sent_and_one_waits(sending, most, images=images)
    sending.bus.reply(ACCEPTED)
    await eventually(lambda: len(sending.bus.requests) == most + 1)

    for _ in range(most):
        sending.bus.reply(ACCEPTED)
    placings = await asyncio.gather(*tasks)
    assert [placing.places for placing in placings] == (most + 1) * [[("worker-a", "parser-1")]]


async def test_requests_with_images_do_not_delay_others() -> None:
    sending = Sending("a")
    images = [PromptImage("ab" * 32, 0, 1)]
    tasks = await all_sent_and_one_waits(sending, UNANSWERED_IMAGES, images=images)
    tasks.append(await sending.sending(sending.turn("text")))
    for task in tasks:
        task.cancel()


async def test_turn_that_waits_for_a_worker_that_leaves_goes_to_another() -> None:
    sending = Sending("a")
    tasks = await all_sent_and_one_waits(sending, UNANSWERED_REQUESTS)
    sending.registry.receive(Heartbeat("worker", "worker-a", leaving=True), sending.now())
    sending.bus.reply(ACCEPTED)

    error = await ended(tasks[-1])
    assert isinstance(error, Unavailable)
    assert sending.bus.workers == UNANSWERED_REQUESTS * ["worker-a"]
    for task in tasks:
        task.cancel()


# -- holds
# --------------------------------------------------------------------------------------------------


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
async def test_follower_is_sent_if_no_worker_takes_its_lead(how: str) -> None:
    sending = Sending("a")
    sending.bus.replies["worker-a"] = None
    lead = await sending.sending(sending.turn("lead", [*GROUP, 1]))
    follower = asyncio.create_task(sending.send(sending.turn("follower", [*GROUP, 2])))
    await eventually(lambda: sending.leads.waiting.total() == 1)

    del sending.bus.replies["worker-a"]
    if how == "refused":
        sending.bus.reply(refusal("worker-a", Overloaded("full")))
        assert isinstance(await ended(lead), Overloaded)
    else:
        lead.cancel()
    await follower
    assert sending.bus.requests[-1][1].held_for == "lead"
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

    error = await ended(task)
    assert isinstance(error, TimedOut)
    assert error.info.code == DEADLINE_PASSED
    assert deadline <= loop_clock.time() < deadline + 1
    assert len(sending.bus.requests) == 1


# -- encodings
# --------------------------------------------------------------------------------------------------


def worker(*, raw: bool) -> Heartbeat:
    cards = [ModelCard("other", raw_prompts=not raw), ModelCard("m", raw_prompts=raw)]
    return Heartbeat("worker", "w", models=cards)


def test_worker_of_an_older_release_gets_json() -> None:
    for gets_json in (worker(raw=False), None):
        data = encoded_for(gets_json, REQUEST)
        assert msgspec.json.decode(data, type=GenerateRequest) == REQUEST


def test_prompt_follows_the_json_as_bytes() -> None:
    data = encoded_for(worker(raw=True), REQUEST)
    assert data.endswith(REQUEST.prompt)
    assert decode_generate(data) == REQUEST
