"""Tests claims of replies that two frontends share."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from structlog.typing import FilteringBoundLogger

from schemas.errors import TimedOut
from services.frontend.peers import Peers
from services.frontend.stored.memory import StoreLimits
from services.frontend.stored.record import StoredReply
from services.frontend.stored.shared import MAX_VALUE_BYTES, SharedStore
from tests.kit.clock import Clock
from tests.kit.waiting import eventually


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
