"""Keeps records for all frontends of a deployment: each has recent ones in its memory, and all use
one JetStream bucket.

A record is written to the bucket at once. Another frontend reads it there, and retries for a
moment, since a client may be faster than the bus, and than the copies of a replicated bucket.
Deletions are published, so that every frontend drops the response.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw
from msgspec.structs import replace
from typing_extensions import override

from schemas.errors import TooLarge, TurnwireError
from schemas.notices import ResponseCancelled, ResponseDeleted
from services.frontend.peers import Peers
from services.frontend.stored.claims import SharedClaims
from services.frontend.stored.memory import Clock, MemoryStore, R, StoreLimits, item_of
from services.frontend.stored.record import (
    Record,
    StoredReply,
    StoredResponse,
    decode,
    failed_view,
    response_of_item,
)
from services.runtime.config.base import MIB
from services.runtime.config.stores import ResponseStoreConfig
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.runtime.storage.kv import Bucket, BucketConfig, digest_key

BUCKET = "tw_responses"
MAX_VALUE_BYTES = 7 * MIB
"""The largest value, below the bus's limit of 8 MB."""
WAITS_S = (0.02, 0.05, 0.1, 0.2)
"""Pauses before reading the bucket again for a record that may be on its way. Replicas get 1 MB
within 30 ms."""

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]
"""Runs a task under a name, as `Process.spawn`."""


def bucket_config(config: ResponseStoreConfig) -> BucketConfig:
    """The bucket of all records."""
    return BucketConfig(
        name=BUCKET,
        description="Turnwire: stored responses and message threads",
        ttl_s=config.response_store_ttl_s,
        max_bytes=config.response_store_bytes,
        max_value_bytes=MAX_VALUE_BYTES,
    )


class SharedStore(MemoryStore):
    """The store of several frontends: recent records in this process's memory, all of them in the
    bucket."""

    def __init__(
        self,
        limits: StoreLimits,
        clock: Clock,
        bucket: Bucket,
        peers: Peers,
        log: FilteringBoundLogger,
        *,
        spawn: Spawn,
    ) -> None:
        """`spawn`: runs the writes in the background."""
        super().__init__(limits, clock)
        self.owner = peers.id
        self._bucket = bucket
        self._peers = peers
        self._claims = SharedClaims(self, bucket, peers, log)
        self._spawn = spawn
        self._log = log
        self._writes: dict[str, asyncio.Task[None]] = {}
        self._reads: dict[str, object] = {}
        """The newest read of each record in the bucket; none where it was deleted meanwhile."""

    @override
    def forget(self, id: str) -> None:
        super().forget(id)
        self._reads.pop(id, None)

    @override
    def put(self, record: Record) -> None:
        """Writes to the bucket in the background, the states of one response in order.

        A reply that is too large for the bucket is not kept here either. So its thread goes on from
        the reply before, in whichever frontend.
        """
        if isinstance(record, StoredReply) and record.size > MAX_VALUE_BYTES:
            self._report_too_large(record.id, record.size)
            return
        super().put(record)
        before = self._writes.get(record.id)
        task = self._spawn(self._write(record, before), f"keep {record.id}")
        self._writes[record.id] = task
        task.add_done_callback(lambda done: self._written(record.id, done))

    @override
    async def get(
        self,
        kind: type[R],
        id: str,
        tenant: str | None,
        *,
        ended: bool = False,
        wait: bool = True,
    ) -> R | None:
        record = self.find(kind, id, tenant)
        if record is not None and (record.ended or record.owner == self.owner):
            return record
        read = self._reads[id] = object()
        try:
            stored = await self._read(id, tenant, WAITS_S if wait else (), ended=ended)
        finally:
            is_current = self._reads.get(id) is read
            if is_current:
                del self._reads[id]
        if stored is None:
            return None
        if stored.ended:
            if is_current:
                super().put(stored)
        elif isinstance(stored, StoredResponse) and not self._peers.is_alive(stored.owner):
            stored = failed_view(stored)
        return stored if isinstance(stored, kind) else None

    @override
    async def item(self, id: str, tenant: str | None) -> Raw | None:
        """Only the frontend that stored them finds items with ids from clients."""
        item = await super().item(id, tenant)
        response = response_of_item(id)
        if item is not None or not response:
            return item
        return item_of(await self.get(StoredResponse, response, tenant, ended=True), id)

    @override
    async def delete(self, id: str, tenant: str | None) -> bool:
        if await self.get(StoredResponse, id, tenant) is None:
            return False
        self.forget(id)
        await _wait_for(self._writes.get(id))
        await self._bucket.delete(digest_key(tenant, id))
        self._peers.publish(ResponseDeleted(id))
        return True

    @override
    async def claim(self, reply: StoredReply, successor: str) -> str:
        holder = await super().claim(reply, successor)
        if holder != successor:
            return holder
        holder = ""
        try:
            holder = await self._claims.claim(reply, successor)
        finally:
            if holder != successor:  # an error may follow a write that took place
                self.release(reply, successor)
        return holder

    @override
    def release(self, reply: StoredReply, successor: str) -> None:
        """Withdraws the claim in the bucket in the background."""
        super().release(reply, successor)
        self._spawn(self._claims.withdraw(reply, successor), f"release {reply.id}")

    @override
    def cancel_elsewhere(self, id: str) -> None:
        self._peers.publish(ResponseCancelled(id))

    @override
    async def wait_for_write(self, id: str) -> None:
        await _wait_for(self._writes.get(id))

    @override
    async def wait_for_writes(self) -> None:
        if self._writes:
            await asyncio.wait(list(self._writes.values()))

    async def _read(
        self, id: str, tenant: str | None, pauses: Sequence[float], *, ended: bool
    ) -> Record | None:
        """Reads a record from the bucket, and again after each pause if it is not there."""
        key = digest_key(tenant, id)
        record: Record | None = None
        for pause in (0.0, *pauses):
            await asyncio.sleep(pause)
            record = _of_tenant(await self._bucket.get(key), id, tenant)
            if record is not None and (record.ended or not ended):
                break
        return record

    async def _write(self, record: Record, before: "asyncio.Task[None] | None") -> None:
        await _wait_for(before)
        key = digest_key(record.tenant, record.id)
        value = msgspec.json.encode(record)
        if len(value) > MAX_VALUE_BYTES and isinstance(record, StoredResponse):
            value = msgspec.json.encode(replace(record, events=b""))
        try:
            await self._bucket.put(key, value)
        except TooLarge:
            self._report_too_large(record.id, len(value))
        except TurnwireError as error:
            self._log.warning("stored.not_shared", id=record.id, reason=error.info.message)

    def _report_too_large(self, id: str, size: int) -> None:
        self._log.warning("stored.not_shared", id=id, bytes=size, reason="too large")

    def _written(self, id: str, task: "asyncio.Task[None]") -> None:
        if self._writes.get(id) is task:
            del self._writes[id]


async def _wait_for(write: "asyncio.Task[None] | None") -> None:
    """Waits until a write is done, if there is one."""
    if write is not None:
        await asyncio.wait([write])


def _of_tenant(value: bytes | None, id: str, tenant: str | None) -> Record | None:
    """The record in the bucket, if it is the tenant's: keys are only digests."""
    if value is None:
        return None
    record = decode(value)
    if record is None or record.id != id or record.tenant != tenant:
        return None
    return record
