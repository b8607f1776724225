"""Tests two frontends that share their responses over a real nats-server."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from structlog.typing import FilteringBoundLogger

from schemas import subjects
from schemas.notices import ResponseCancelled, ResponseDeleted, decode_notice
from services.frontend.peers import BusPeers
from services.frontend.stored import shared
from services.frontend.stored.shared import bucket_config
from services.runtime.nats.bus import Delivery
from services.runtime.storage import kv
from services.runtime.storage.kv import Bucket, digest_key
from tests.frontend.responses.responses_client import Client, said
from tests.kit.frontend import Served, serving
from tests.kit.processes import MakeProcess
from tests.kit.stored import SHARED, Pair, pairing, shared_store
from tests.kit.waiting import LIMIT_S, eventually


@dataclass
class Clients(Pair):
    """A pair of frontends with a client of each."""

    ask_one: Client
    ask_other: Client


@asynccontextmanager
async def clients_of(
    make_process: MakeProcess, log: FilteringBoundLogger, **options: Any
) -> AsyncIterator[Clients]:
    """Runs both frontends, which get each other's notices."""
    async with pairing(make_process, log, **options) as pair:
        for process, served in zip(pair.processes, (pair.one, pair.other), strict=True):

            def apply(delivery: Delivery, served: Served = served) -> None:
                notice = decode_notice(delivery.data)
                assert isinstance(notice, ResponseCancelled | ResponseDeleted)
                served.responses.apply_notice(notice)

            await process.subscribe(subjects.frontends(), apply)
            await process.bus.flush()
        yield Clients(**vars(pair), ask_one=Client(pair.one), ask_other=Client(pair.other))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for JetStream and the other frontend's responses, however slow the machine is."""
    monkeypatch.setattr(kv, "TIMEOUT_S", LIMIT_S)
    monkeypatch.setattr(shared, "WAITS_S", (0.02,) * 3000)


@pytest.fixture
async def pair(
    make_process: MakeProcess, quiet_log: FilteringBoundLogger
) -> AsyncIterator[Clients]:
    """Two frontends that share their store."""
    async with clients_of(make_process, quiet_log) as made:
        yield made


async def test_response_is_readable_from_another_frontend_until_it_is_deleted(
    pair: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.go.set()
    first = await pair.ask_one.create(input="one")
    await pair.one.responses.drain()
    assert await pair.bucket.get(digest_key(None, first["id"])) is not None
    second = await pair.ask_other.create(previous_response_id=first["id"], input="two")
    events = await pair.ask_one.stream(previous_response_id=second["id"], input="three")
    made = events[-1]["response"]
    chain = said(pair.one.gateway.conversations[-1])
    assert [texts for _, texts in chain] == [["one"], ["So far"], ["two"], ["So far"], ["three"]]
    assert await pair.ask_other.get(made["id"]) == made
    assert await pair.ask_other.replay(made["id"], 3) == events[4:]
    items = await pair.ask_other.get(made["id"], "/input_items")
    assert len(items["data"]) == 5
    reference = {"type": "item_reference", "id": made["output"][0]["id"]}
    await pair.ask_other.create(input=[reference, {"role": "user", "content": "go"}])
    monkeypatch.setattr(shared, "WAITS_S", ())
    await pair.ask_one.ask("DELETE", f"/{made['id']}")
    async with asyncio.timeout(LIMIT_S):
        while await pair.ask_other.status(f"/{made['id']}") == 200:
            pass


async def test_background_response_is_served_by_another_frontend(
    pair: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await pair.ask_one.create(background=True)
    await pair.ask_other.until(made["id"], "in_progress")
    following = asyncio.create_task(pair.ask_other.replay(made["id"]))
    with monkeypatch.context() as impatient:
        impatient.setattr(shared, "WAITS_S", ())
        error = await pair.ask_other.refuse(previous_response_id=made["id"])
    assert "has not ended yet" in error["message"]
    pair.go.set()
    events = await following
    assert events[-1]["type"] == "response.completed"
    assert events == await pair.ask_one.replay(made["id"])
    pair.go.clear()
    made = await pair.ask_one.create(background=True)
    await pair.ask_one.until(made["id"], "in_progress")
    cancelled = await pair.ask_other.ask("POST", f"/{made['id']}/cancel")
    assert (cancelled["status"], pair.one.gateway.turns[-1].cancelled) == ("cancelled", ["hangup"])
    assert (await pair.ask_one.get(made["id"]))["status"] == "cancelled"
    orphan = await pair.ask_one.create(background=True)
    await pair.ask_other.until(orphan["id"], "in_progress")
    del pair.living[0]
    shown = await pair.ask_other.get(orphan["id"])
    assert (shown["status"], shown["error"]["code"]) == ("failed", "server_error")


async def test_background_response_that_another_frontend_deletes_does_not_come_back(
    pair: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await pair.ask_one.create(background=True)
    await pair.ask_other.until(made["id"], "in_progress")
    await pair.ask_other.ask("DELETE", f"/{made['id']}")
    background = pair.one.responses.background
    await eventually(lambda: len(background) == 0)
    assert pair.one.gateway.turns[-1].cancelled == ["hangup"]
    await pair.one.responses.store.wait_for_writes()
    monkeypatch.setattr(shared, "WAITS_S", ())
    for client in (pair.ask_one, pair.ask_other):
        await client.refused("GET", f"/{made['id']}", 404)
    assert await pair.bucket.get(digest_key(None, made["id"])) is None


async def test_store_keeps_own_responses_without_the_bucket(
    make_process: MakeProcess, quiet_log: FilteringBoundLogger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "WAITS_S", ())
    process = await make_process("frontend", "alone")
    config = msgspec.structs.replace(bucket_config(SHARED), name="absent")
    absent = Bucket(process.bus, config, quiet_log)
    stored = shared_store(process, absent, BusPeers(process), SHARED)
    async with serving(config=SHARED, stored=stored) as one:
        client = Client(one)
        made = await client.create()
        assert await client.get(made["id"]) == made
        await client.refused("GET", "/resp_unknown", 404)
        await client.ask("DELETE", f"/{made['id']}")
        await client.refused("GET", f"/{made['id']}", 404)


class FollowerBucket(Bucket):
    """A bucket as a replica has it that is behind the leader: a new value is seen only by the third
    read."""

    def __init__(self, bucket: Bucket) -> None:
        vars(self).update(vars(bucket))
        self._seen: dict[str, deque[bytes | None]] = {}

    async def get(self, key: str) -> bytes | None:
        seen = self._seen.setdefault(key, deque([None, None], maxlen=3))
        seen.append(await super().get(key))
        return seen[0]


async def test_announced_response_is_found_on_a_replica_that_is_behind(
    make_process: MakeProcess, quiet_log: FilteringBoundLogger
) -> None:
    """The second frontend uses a response that the first one has just stored."""
    async with clients_of(make_process, quiet_log, reader=FollowerBucket) as pair:
        ids = [(await pair.ask_one.create(background=True, input="one"))["id"] for _ in range(3)]
        for id in ids:
            await pair.ask_other.until(id, "in_progress")
        pair.go.set()
        made = [await pair.ask_one.until(id, "completed") for id in ids]
        await pair.one.responses.store.wait_for_writes()
        await pair.ask_other.create(previous_response_id=ids[0], input="two")
        read = said(pair.other.gateway.conversations[-1])
        assert read[:2] == [("user", ["one"]), ("assistant", ["So far"])]
        reference = {"type": "item_reference", "id": made[1]["output"][0]["id"]}
        await pair.ask_other.create(input=[reference, {"role": "user", "content": "two"}])
        events = await pair.ask_other.replay(ids[2])
        assert events[-1]["response"] == made[2]
