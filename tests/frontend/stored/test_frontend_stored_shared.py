"""Tests a store that is shared: writes, reads and deletions that overlap."""

import asyncio
from typing import Any

import msgspec
import pytest
from structlog.typing import FilteringBoundLogger

from services.frontend.peers import NO_PEERS
from services.frontend.stored.memory import StoreLimits
from services.frontend.stored.record import StoredReply, StoredResponse
from services.frontend.stored.shared import MAX_VALUE_BYTES, SharedStore
from tests.frontend.stored.stored_records import item, record
from tests.kit.clock import Clock
from tests.kit.waiting import LIMIT_S


def shared_store(bucket: Any, log: FilteringBoundLogger) -> SharedStore:
    limits = StoreLimits(3600.0, 10, 2 * MAX_VALUE_BYTES)
    return SharedStore(
        limits,
        Clock(),
        bucket,
        NO_PEERS,
        log,
        spawn=lambda work, _name: asyncio.create_task(work),
    )


async def test_reply_that_cannot_be_shared_is_not_kept(quiet_log: FilteringBoundLogger) -> None:
    absent: Any = None
    kept = shared_store(absent, quiet_log)
    kept.put(StoredReply(id="a", created=1000.0, messages=[item("i", "x" * MAX_VALUE_BYTES)]))
    assert kept.find(StoredReply, "a", None) is None


class SlowBucket:
    """A bucket that has read the value when `reading` is set, and answers when `go` is."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.reading, self.go = asyncio.Event(), asyncio.Event()

    async def get(self, _key: str) -> bytes:
        self.reading.set()
        await self.go.wait()
        return self.value


@pytest.mark.parametrize("deleted", [True, False])
async def test_response_that_is_deleted_while_it_is_read_does_not_come_back(
    deleted: bool, quiet_log: FilteringBoundLogger
) -> None:
    kept = record("resp_a")
    bucket: Any = SlowBucket(msgspec.json.encode(kept))
    shared = shared_store(bucket, quiet_log)
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
    shared = shared_store(bucket, quiet_log)
    shared.put(record("large"))
    shared.put(record("small"))
    await asyncio.wait_for(shared.wait_for_write("small"), LIMIT_S)
    assert len(bucket.written) == 1
    bucket.go.set()
    await asyncio.wait_for(shared.wait_for_writes(), LIMIT_S)
    assert len(bucket.written) == 2
    await shared.wait_for_write("unknown")
