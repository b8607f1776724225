"""Requests to workers: few at once to each, none after its deadline, and in the encodings that
workers read."""

import asyncio
import gc
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from schemas.control import Heartbeat, ModelCard
from schemas.conversation import Sampling
from schemas.errors import DEADLINE_PASSED, Overloaded, TimedOut, Unavailable
from schemas.events import PromptImage
from schemas.requests import GenerateReply, GenerateRequest, decode_generate
from schemas.token_ids import pack_ids
from services.preprocessor.routing.worker_links import (
    UNANSWERED_IMAGES,
    UNANSWERED_REQUESTS,
    Unanswered,
    encoded_for,
)
from tests.kit.clock import LoopClock
from tests.kit.preprocessor import RecordedPlacing, Sending, failure_of
from tests.kit.waiting import eventually

REQUEST = GenerateRequest("t", 1, "m", pack_ids(range(99)), "p", "f", Sampling(), [], Raw(b"null"))
ACCEPTED = GenerateReply("worker-a")


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
    sending.bus.replies["worker-a"] = None
    images = [PromptImage("ab" * 32, 0, 1)]
    tasks = [
        asyncio.create_task(sending.send(sending.turn(f"{number}", images=images)))
        for number in range(UNANSWERED_REQUESTS)
    ]
    await eventually(lambda: len(sending.bus.requests) == UNANSWERED_IMAGES)
    tasks.append(await sending.sending(sending.turn("text")))
    for task in tasks:
        task.cancel()


async def test_turn_that_waits_for_a_worker_that_leaves_is_not_sent_there() -> None:
    sending = Sending("a")
    tasks = await all_sent_and_one_waits(sending, UNANSWERED_REQUESTS)
    sending.registry.receive(Heartbeat("worker", "worker-a", leaving=True), sending.now())
    sending.bus.reply(ACCEPTED)

    error = await failure_of(tasks[-1])
    assert isinstance(error, Unavailable)
    assert sending.bus.workers == UNANSWERED_REQUESTS * ["worker-a"]
    for task in tasks:
        task.cancel()


def all_unanswered() -> list[Unanswered]:
    """Those that live in this process."""
    return [living for living in gc.get_objects() if type(living) is Unanswered]


async def test_nothing_is_kept_of_a_worker_that_left_before_its_offer() -> None:
    earlier = all_unanswered()
    sending = Sending("a", "b")
    sending.bus.replies |= {"worker-a": None, "worker-b": None}
    task = await sending.sending(sending.turn("t"))
    for name in ("worker-a", "worker-b"):
        sending.registry.receive(Heartbeat("worker", name, leaving=True), sending.now())
    (first,) = sending.bus.workers
    sending.bus.reply(GenerateReply(first, Overloaded("no room").info))

    assert isinstance(await failure_of(task), Unavailable)
    assert sending.bus.workers == [first]
    del task
    gc.collect()
    assert not [kept for kept in all_unanswered() if kept not in earlier]


async def test_what_a_worker_did_not_answer_before_it_left_does_not_count_when_it_returns() -> None:
    sending = Sending("a")
    tasks = await all_sent_and_one_waits(sending, UNANSWERED_REQUESTS)
    sending.registry.receive(Heartbeat("worker", "worker-a", leaving=True), sending.now())
    sending.join("worker-a")
    tasks.append(await sending.sending(sending.turn("later")))
    for task in tasks:
        task.cancel()


async def test_turn_is_not_sent_after_its_deadline(loop_clock: LoopClock) -> None:
    sending = Sending("a")
    deadline = loop_clock.time() + 30
    *others, late = await all_sent_and_one_waits(sending, UNANSWERED_REQUESTS, deadline=deadline)
    loop_clock.passed += 30
    sending.bus.reply(ACCEPTED)

    error = await failure_of(late)
    assert isinstance(error, TimedOut)
    assert error.info.code == DEADLINE_PASSED
    assert len(sending.bus.requests) == len(others)
    for other in others:
        other.cancel()


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
