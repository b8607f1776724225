"""Tests stores: limits of count, bytes and time, items by id, tenants."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from services.frontend.stored.memory import MemoryStore, StoreLimits
from services.frontend.stored.shared import MAX_VALUE_BYTES, SharedStore
from structlog.typing import FilteringBoundLogger

from schemas.errors import Invalid, TimedOut, TooLarge
from services.frontend.apis.responses.state.expand import MAX_CHAIN, chain_items
from services.frontend.apis.responses.state.input_items import list_page
from services.frontend.peers import Peers
from services.frontend.stored.record import StoredReply, StoredResponse
from tests.kit.clock import Clock
from tests.kit.waiting import LIMIT_S, eventually


def store(clock: Clock | None = None, **limits: Any) -> MemoryStore:
    limits = {"ttl_s": 60.0, "entries": 100, "bytes": 1 << 20} | limits
    return MemoryStore(StoreLimits(**limits), clock or Clock())


def item(id: str, text: str = "x") -> Raw:
    return Raw(json.dumps({"id": id, "type": "message", "role": "user", "content": text}).encode())


def record(id: str, previous: str | None = None, **changes: Any) -> StoredResponse:
    members: dict[str, Any] = {
        "id": id,
        "created": 1000.0,
        "response": Raw(json.dumps({"id": id, "status": "completed"}).encode()),
        "status": "completed",
        "previous": previous,
        "input": [item(f"in_{id}")],
        "output": [item(f"out_{id}")],
    }
    return StoredResponse(**members | changes)


async def test_record_is_found_by_its_tenant_until_it_is_deleted() -> None:
    kept = store()
    kept.put(record("a", tenant="t"))
    kept.put(record("a", tenant="t", status="incomplete"))
    for stranger in (None, "u", ""):
        assert await kept.get(StoredResponse, "a", stranger) is None
        assert await kept.item("in_a", stranger) is None
        assert not await kept.delete("a", stranger)
    found = await kept.get(StoredResponse, "a", "t")
    assert found is not None
    assert found.status == "incomplete"
    assert await kept.item("in_a", "t") == item("in_a")
    assert len(kept) == 1
    assert await kept.delete("a", "t")
    assert not await kept.delete("a", "t")
    assert (len(kept), kept.bytes) == (0, 0)
    assert await kept.item("in_a", "t") is None


async def test_least_recently_used_record_is_dropped_first() -> None:
    kept = store(entries=3)
    for id in ("a", "b", "c"):
        kept.put(record(id))
    await kept.get(StoredResponse, "a", None)
    kept.put(record("d"))
    found = [
        id for id in ("a", "b", "c", "d") if await kept.get(StoredResponse, id, None) is not None
    ]
    assert found == ["a", "c", "d"]
    assert await kept.item("in_b", None) is None


async def test_bytes_are_bounded() -> None:
    kept = store(bytes=20_000)
    for number in range(50):
        kept.put(record(f"r{number}", input=[item("i", "x" * 1000)]))
        assert kept.bytes <= 20_000
    assert 5 < len(kept) < 20
    kept.put(record("huge"))
    kept.put(record("huge", input=[item("i", "x" * 30_000)]))
    assert await kept.get(StoredResponse, "huge", None) is None
    assert kept.bytes <= 20_000


async def test_entries_expire() -> None:
    clock = Clock()
    kept = store(clock)
    kept.put(record("a", created=clock.now))
    clock.now += 60
    assert await kept.get(StoredResponse, "a", None) is not None
    clock.now += 0.5
    assert await kept.get(StoredResponse, "a", None) is None
    assert len(kept) == 0


async def test_reply_of_a_thread_is_kept_as_a_response_is() -> None:
    clock = Clock()
    kept = store(clock)
    kept.put(StoredReply(id="a", created=clock.now, tenant="t", messages=[item("i", "x" * 5000)]))
    assert await kept.get(StoredReply, "a", "u") is None
    assert await kept.get(StoredResponse, "a", "t") is None
    assert not await kept.delete("a", "t")
    assert await kept.get(StoredReply, "a", "t") is not None
    assert kept.bytes > 5000
    clock.now += 60.5
    assert await kept.get(StoredReply, "a", "t") is None


async def test_reply_is_claimed_once_until_it_is_released() -> None:
    kept = store()
    reply = StoredReply(id="a", created=1000.0)
    assert await kept.claim(reply, "b") == "b"
    assert await kept.claim(reply, "c") == "b"
    kept.release(reply, "c")  # has no claim
    assert await kept.claim(reply, "c") == "b"
    kept.release(reply, "b")
    assert await kept.claim(reply, "c") == "c"


def test_repeated_item_is_listed_once() -> None:
    """Otherwise a client that reads page after page would never finish."""
    items = [Raw(b'{"id":"%d"}' % number) for number in (1, 2, 1, 3, 2)]
    for newest_first, order in ((False, "123"), (True, "321")):
        found, after = "", None
        for _ in range(3):
            page = json.loads(msgspec.json.encode(list_page(items, after, 1, newest_first)))
            found, after = found + page["last_id"], page["last_id"]
        assert (found, page["has_more"]) == (order, False)


class SlowBucket:
    """A bucket that has read the value when `reading` is set, and answers when `go` is."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.reading, self.go = asyncio.Event(), asyncio.Event()

    async def get(self, _key: str) -> bytes:
        self.reading.set()
        await self.go.wait()
        return self.value


class NamedPeers(Peers):
    """The frontends, all of them alive. `id`: of this one."""

    def __init__(self, id: str) -> None:
        self.id = id


class ClaimBucket:
    """A bucket with one key, which two frontends share."""

    def __init__(self) -> None:
        self.number = 0
        self.value: bytes | None = None
        self.waiting = 0
        """Writes that have not taken place."""
        self.answers = True
        """Whether a write is acknowledged."""
        self.tasks: list[asyncio.Task[None]] = []
        self.hold_writes().set()

    def hold_writes(self) -> asyncio.Event:
        """The event for which the writes that follow wait."""
        self._go = asyncio.Event()
        return self._go

    async def get(self, _key: str) -> None:
        """Finds nothing: no reply is stored."""

    async def entry(self, _key: str) -> tuple[int, bytes | None]:
        return self.number, self.value

    async def replace(self, _key: str, value: bytes, number: int) -> bool:
        self.waiting += 1
        await self._go.wait()
        self.waiting -= 1
        if self.number != number:
            return False
        self.number, self.value = number + 1, value
        if not self.answers:
            raise TimedOut("no answer")
        return True

    def frontend(self, name: str, log: FilteringBoundLogger) -> SharedStore:
        """The store of a frontend; all frontends are alive."""
        bucket: Any = self
        limits = StoreLimits(3600.0, 10, 2 * MAX_VALUE_BYTES)
        peers = NamedPeers(name)
        return SharedStore(limits, Clock(), bucket, peers, log, spawn=self._spawn)

    def _spawn(self, work: Coroutine[Any, Any, None], _name: str) -> "asyncio.Task[None]":
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]


async def test_late_release_leaves_the_claim_of_a_retry(quiet_log: FilteringBoundLogger) -> None:
    bucket = ClaimBucket()
    one, other = bucket.frontend("f1", quiet_log), bucket.frontend("f2", quiet_log)
    reply = StoredReply(id="a", created=1000.0)
    assert await one.claim(reply, "b") == "b"
    late = bucket.hold_writes()
    one.release(reply, "b")
    await eventually(lambda: bucket.waiting == 1)
    bucket.hold_writes().set()
    assert await one.claim(reply, "c") == "c"
    late.set()
    await asyncio.gather(*bucket.tasks)
    assert await other.claim(reply, "d") == "c"


async def test_claim_that_is_stored_without_an_answer_is_withdrawn(
    quiet_log: FilteringBoundLogger,
) -> None:
    bucket = ClaimBucket()
    one, other = bucket.frontend("f1", quiet_log), bucket.frontend("f2", quiet_log)
    reply = StoredReply(id="a", created=1000.0)
    bucket.answers = False
    with pytest.raises(TimedOut):
        await one.claim(reply, "b")
    await asyncio.gather(*bucket.tasks)
    bucket.answers = True
    assert await other.claim(reply, "c") == "c"
    assert await one.claim(reply, "d") == "c"


async def test_reply_that_cannot_be_shared_is_not_kept(quiet_log: FilteringBoundLogger) -> None:
    kept = ClaimBucket().frontend("f1", quiet_log)
    kept.put(StoredReply(id="a", created=1000.0, messages=[item("i", "x" * MAX_VALUE_BYTES)]))
    assert await kept.get(StoredReply, "a", None) is None


@pytest.mark.parametrize("deleted", [True, False])
async def test_response_that_is_deleted_while_it_is_read_does_not_come_back(
    deleted: bool, quiet_log: FilteringBoundLogger
) -> None:
    kept = record("resp_a")
    bucket: Any = SlowBucket(msgspec.json.encode(kept))
    spawn: Any = None
    limits = StoreLimits(3600.0, 10, 1 << 20)
    shared = SharedStore(limits, Clock(), bucket, NamedPeers("here"), quiet_log, spawn=spawn)
    reading = asyncio.create_task(shared.get(StoredResponse, "resp_a", None))
    await asyncio.wait_for(bucket.reading.wait(), LIMIT_S)
    if deleted:
        shared.forget("resp_a")
    bucket.go.set()
    assert await reading == kept
    assert (shared.find(StoredResponse, "resp_a", None) is None) == deleted


async def test_write_of_a_record_does_not_wait_for_others(quiet_log: FilteringBoundLogger) -> None:
    class PutBucket:
        def __init__(self) -> None:
            self.written: list[str] = []
            self.go = asyncio.Event()

        async def put(self, key: str, value: bytes) -> None:
            if b"large" in value:
                await self.go.wait()
            self.written.append(key)

    bucket: Any = PutBucket()
    shared = SharedStore(
        StoreLimits(3600.0, 10, 1 << 20),
        Clock(),
        bucket,
        NamedPeers("a"),
        quiet_log,
        spawn=lambda work, _name: asyncio.create_task(work),
    )
    shared.put(record("large"))
    shared.put(record("small"))
    await asyncio.wait_for(shared.wait_for_write("small"), LIMIT_S)
    assert len(bucket.written) == 1
    bucket.go.set()
    await asyncio.wait_for(shared.wait_for_writes(), LIMIT_S)
    assert len(bucket.written) == 2
    await shared.wait_for_write("unknown")


async def test_a_chain_has_a_limit_which_is_not_that_of_a_lost_response() -> None:
    kept = store(entries=MAX_CHAIN + 1, bytes=1 << 30)
    for number in range(MAX_CHAIN + 1):
        kept.put(record(f"r{number}", f"r{number - 1}" if number else None))
    assert len(await chain_items(kept, f"r{MAX_CHAIN - 1}", None)) == 2 * MAX_CHAIN
    with pytest.raises(Invalid, match=f"continues more than {MAX_CHAIN} others"):
        await chain_items(kept, f"r{MAX_CHAIN}", None)


async def test_items_of_a_chain_are_bounded_in_bytes() -> None:
    kept = store(chain_bytes=3000)
    kept.put(record("a", input=[item("i", "x" * 1000)]))
    kept.put(record("b", "a", input=[item("j", "x" * 1000)], events=b"x" * 5000))
    assert len(await chain_items(kept, "b", None)) == 4
    kept.put(record("c", "b", input=[item("k", "x" * 1000)]))
    with pytest.raises(TooLarge, match="more than 3000 bytes"):
        await chain_items(kept, "c", None)
