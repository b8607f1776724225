"""Tests message threads of two frontends that share their store over a real nats-server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from structlog.typing import FilteringBoundLogger

from schemas.errors import EngineFailed
from services.frontend.peers import BusPeers
from services.frontend.stored import shared
from services.frontend.stored.shared import bucket_config
from services.runtime.storage import kv
from services.runtime.storage.kv import Bucket
from tests.kit.bodies import USER, Json, block, messages, user
from tests.kit.frontend import Served, serving
from tests.kit.processes import MakeProcess
from tests.kit.stored import SHARED, Pair, pairing, shared_store
from tests.kit.waiting import LIMIT_S, eventually

CREATE = block("create")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for JetStream and the other frontend's replies, however slow the machine is."""
    monkeypatch.setattr(kv, "TIMEOUT_S", LIMIT_S)
    monkeypatch.setattr(shared, "WAITS_S", (0.02,) * 50)


@pytest.fixture
async def pair(make_process: MakeProcess, quiet_log: FilteringBoundLogger) -> AsyncIterator[Pair]:
    """Two frontends that share their store."""
    async with pairing(make_process, quiet_log) as made:
        yield made


async def send(served: Served, *history: Json, thread: Json) -> Json:
    """The message of an answer."""
    reply = await served.post("/v1/messages", messages(*history, thread=thread))
    assert reply.status == 200, reply.text
    answer: Json = reply.json
    return answer


async def refused(served: Served, thread: Json) -> Any:
    """The code of the error of a request that continues a thread."""
    reply = await served.post("/v1/messages", messages(thread=thread))
    assert reply.status in (400, 404), reply.text
    return reply.json["error"]["details"]["error_code"]


async def until_continued(served: Served, answer: Json) -> None:
    """Continues a reply as soon as its claim is withdrawn, in the background."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            reply = await served.post("/v1/messages", messages(thread=following(answer)))
            if reply.status == 200:
                return
            assert reply.json["error"]["details"]["error_code"] == "thread_continue_in_flight"


def following(answer: Json) -> Json:
    return block("continue", previous_message_id=answer["id"])


async def test_thread_is_continued_at_any_frontend(pair: Pair) -> None:
    pair.go.set()
    answer = await send(pair.one, USER, thread=CREATE)
    for number, served in enumerate([pair.other, pair.other, pair.one, pair.other]):
        answer = await send(served, user(f"{number}"), thread=following(answer))
    last = pair.other.gateway.conversations[-1]
    assert len(last.messages) == 9


async def test_reply_is_continued_once_by_all_frontends(pair: Pair) -> None:
    pair.go.set()
    first = await send(pair.one, USER, thread=CREATE)
    await send(pair.other, USER, thread=following(first))
    for served in (pair.one, pair.other):
        assert await refused(served, following(first)) == "thread_already_continued"

    second = await send(pair.one, USER, thread=CREATE)
    pair.go.clear()
    running = asyncio.create_task(send(pair.other, USER, thread=following(second)))
    await eventually(lambda: len(pair.other.gateway.turns) == 2)
    assert await refused(pair.one, following(second)) == "thread_continue_in_flight"
    pair.go.set()
    await running


async def test_two_requests_at_once_are_one_continuation(pair: Pair) -> None:
    pair.go.set()
    for _ in range(5):
        first = await send(pair.one, USER, thread=CREATE)
        body = messages(thread=following(first))
        both = [served.post("/v1/messages", body) for served in (pair.one, pair.other)]
        assert sorted([reply.status for reply in await asyncio.gather(*both)]) == [200, 400]


async def test_thread_of_a_frontend_that_died_goes_on_from_its_last_whole_reply(
    pair: Pair,
) -> None:
    pair.go.set()
    first = await send(pair.one, USER, thread=CREATE)
    pair.go.clear()
    dying = asyncio.create_task(send(pair.one, user("Lost."), thread=following(first)))
    await eventually(lambda: len(pair.one.gateway.turns) == 2)
    del pair.living[0]
    running = asyncio.create_task(send(pair.other, user("Again."), thread=following(first)))
    await eventually(lambda: len(pair.other.gateway.turns) == 1)
    assert len(pair.other.gateway.conversations[0].messages) == 3
    pair.go.set()
    await asyncio.gather(running, dying)


async def test_reply_can_be_continued_elsewhere_after_a_turn_that_failed(pair: Pair) -> None:
    pair.go.set()
    first = await send(pair.one, USER, thread=CREATE)
    pair.one.gateway.refusal = EngineFailed("no")
    assert (await pair.one.post("/v1/messages", messages(thread=following(first)))).status == 500

    await until_continued(pair.other, first)


async def test_thread_goes_on_from_the_reply_before_one_that_is_too_large(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.go.set()
    first = await send(pair.one, USER, thread=CREATE)
    large = await send(pair.one, user("x" * shared.MAX_VALUE_BYTES), thread=following(first))
    await pair.one.responses.store.wait_for_writes()
    monkeypatch.setattr(shared, "WAITS_S", ())
    for served in (pair.one, pair.other):
        assert await refused(served, following(large)) == "thread_not_found"
    await until_continued(pair.other, first)


async def test_threads_stay_in_their_frontend_without_the_bucket(
    make_process: MakeProcess, quiet_log: FilteringBoundLogger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "WAITS_S", ())
    process = await make_process("frontend", "alone")
    config = msgspec.structs.replace(bucket_config(SHARED), name="absent")
    absent = Bucket(process.bus, config, quiet_log)
    stored = shared_store(process, absent, BusPeers(process), SHARED)
    async with serving(config=SHARED, stored=stored) as served:
        first = await send(served, USER, thread=CREATE)
        await send(served, USER, thread=following(first))
        assert await refused(served, following(first)) == "thread_already_continued"
