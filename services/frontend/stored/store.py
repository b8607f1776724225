"""Keeps responses, replies of message threads and what is hidden of answers in memory, bounded in
count, bytes and time; each tenant sees only its own.

Several frontends share a `SharedStore`: each has its own memory, and all use one JetStream bucket.

A record is written to the bucket at once. Another frontend reads it there, and retries for a
moment, since a client may be faster than the bus, and than the copies of a replicated bucket.
Deletions are published, so that every frontend drops the response.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

import msgspec
from aiohttp import web
from cachetools import Cache, LRUCache
from msgspec import Raw, Struct
from msgspec.structs import replace
from typing_extensions import override

from schemas.errors import TooLarge, TurnwireError
from schemas.notices import ResponseCancelled, ResponseDeleted
from services.frontend.peers import Peers
from services.frontend.stored.record import (
    Claim,
    Record,
    StoredRecord,
    StoredReply,
    StoredResponse,
    decode,
    decode_claim,
    failed_view,
    response_of_item,
)
from services.runtime.config.base import MIB
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.stores import ResponseStoreConfig
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.runtime.storage.kv import Bucket, BucketConfig, digest_key

BUCKET = "tw_responses"
MAX_VALUE_BYTES = 7 * 1024 * 1024
"""The largest value in bytes, below the bus's limit of 8 MB."""
WAITS_S = (0.02, 0.05, 0.1, 0.2)
"""Pauses before reading the bucket again for a record that may be on its way. Replicas get 1 MB
within 30 ms."""
_WITHDRAWN = b"null"
"""In place of a claim."""

R = TypeVar("R", bound=StoredRecord)
Clock: TypeAlias = Callable[[], float]
"""Unix time in seconds."""
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]
"""Runs a task under a name, as `Process.spawn`."""


class StoreLimits(Struct, frozen=True):
    """The limits of a store."""

    ttl_s: float
    entries: int
    bytes: int
    chain_bytes: int = 64 * MIB
    """The most bytes of what one request continues, which count like those of its body."""

    @staticmethod
    def of(config: FrontendConfig) -> "StoreLimits":
        """The limits of a frontend's store."""
        return StoreLimits(
            config.response_store_ttl_s,
            config.response_store_entries,
            config.response_store_bytes,
            config.max_body_bytes,
        )

    def check_chain(self, size: int, param: str) -> None:
        """Raises TooLarge for records that a request continues. `param`: the member that names the
        last one."""
        if size > self.chain_bytes:
            raise TooLarge(
                f"{param}: the conversation has more than {self.chain_bytes} bytes, the limit of a "
                "request.",
                param=param,
            )


class MemoryStore:
    """Keeps records in this process. Above a limit, the least recently used are dropped."""

    owner = "here"
    """The process in which responses of this store run."""

    def __init__(self, limits: StoreLimits, clock: Clock) -> None:
        self.limits = limits
        self._clock = clock
        self._records = _Records(limits.bytes)
        self._successors: LRUCache[str, str] = LRUCache(limits.entries)
        """The reply that continues another one, or is being made to, by the other's id."""

    def __len__(self) -> int:
        return len(self._records)

    @property
    def bytes(self) -> int:
        """The approximate size of all records."""
        return int(self._records.currsize)

    def put(self, record: Record) -> None:
        """Keeps a record in place of an earlier one with its id; it can be read once this returns.
        A record larger than the limit is not kept."""
        self.forget(record.id)
        try:
            self._records[record.id] = record
        except ValueError:  # too large
            return
        while len(self._records) > self.limits.entries:
            self._records.popitem()
        self._forget_expired()

    def find(self, kind: type[R], id: str, tenant: str | None) -> R | None:
        """The tenant's record of this kind and id, if it is in this process."""
        if id not in self._records:
            return None
        record = self._records.peek(id)
        if record.tenant != tenant or not isinstance(record, kind):
            return None
        if self._is_expired(record):
            self.forget(id)
            return None
        self._records.touch(id)
        return record

    async def get(
        self,
        kind: type[R],
        id: str,
        tenant: str | None,
        *,
        ended: bool = False,
        wait: bool = True,
    ) -> R | None:
        """The tenant's record of this kind and id. `ended`: the client may know of its end.
        `wait`: it may be on its way to a shared store. Raises TurnwireError where that does not
        answer."""
        return self.find(kind, id, tenant)

    async def item(self, id: str, tenant: str | None) -> Raw | None:
        """An input or output item of any of the tenant's responses. Raises as `get`."""
        response = self._records.responses.get((tenant, id), "")
        return _item_of(self.find(StoredResponse, response, tenant), id)

    async def items(self, ids: Iterable[str], tenant: str | None) -> dict[str, Raw]:
        """The items with these ids that are stored. Raises as `get`."""
        stored: dict[str, Raw] = {}
        for id in ids:
            item = await self.item(id, tenant)
            if item is not None:
                stored[id] = item
        return stored

    async def delete(self, id: str, tenant: str | None) -> bool:
        """Deletes a response everywhere. Returns False where there was none. Raises as `get`."""
        if self.find(StoredResponse, id, tenant) is None:
            return False
        self.forget(id)
        return True

    async def claim(self, reply: StoredReply, successor: str) -> str:
        """Claims a reply for the one request that continues it. Raises as `get`.

        `successor`: the id of the reply that the request makes. Returns the successor with the
        claim: this one, or that of an earlier request.
        """
        return self._successors.setdefault(reply.id, successor)

    def release(self, reply: StoredReply, successor: str) -> None:
        """Withdraws a claim of this process, if `successor` has it."""
        if self._successors.get(reply.id) == successor:
            del self._successors[reply.id]

    def cancel_elsewhere(self, id: str) -> None:
        """Has the process that runs a response cancel it, if that is not this one."""

    def forget(self, id: str) -> None:
        """Drops a record of any tenant from this process."""
        self._records.pop(id, None)

    async def wait_for_write(self, id: str) -> None:
        """Waits until the last state of a record that was put is stored."""

    async def wait_for_writes(self) -> None:
        """Waits until every record that was put before this call is stored."""

    def _is_expired(self, record: StoredRecord) -> bool:
        return self._clock() - record.created > self.limits.ttl_s

    def _forget_expired(self) -> None:
        """Drops the first records, as long as they have expired."""
        while self._records:
            first = next(iter(self._records))
            if not self._is_expired(self._records.peek(first)):
                return
            self.forget(first)


class ConnectionStore(MemoryStore):
    """The responses of one connection, in front of the store of the deployment, which has the
    others."""

    def __init__(self, limits: StoreLimits, clock: Clock, deployment: MemoryStore) -> None:
        super().__init__(limits, clock)
        self._deployment = deployment

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
        if record is not None:
            return record
        return await self._deployment.get(kind, id, tenant, ended=ended, wait=wait)

    @override
    async def item(self, id: str, tenant: str | None) -> Raw | None:
        item = await super().item(id, tenant)
        if item is not None:
            return item
        return await self._deployment.item(id, tenant)


class _Records(LRUCache[str, Record]):
    """Records by id, with an index of their items."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, getsizeof=attrgetter("size"))
        self.responses: dict[tuple[str | None, str], str] = {}
        """The response that has an item, by tenant and item id."""

    def peek(self, id: str) -> Record:
        """The record; reading it does not count as use."""
        return Cache.__getitem__(self, id)

    def touch(self, id: str) -> None:
        """Counts as use of a record."""
        self[id]

    def __setitem__(self, id: str, record: Record) -> None:
        super().__setitem__(id, record)
        for item, _ in record.items():
            self.responses[record.tenant, item] = id

    def __delitem__(self, id: str) -> None:
        record = self.peek(id)
        super().__delitem__(id)
        for item, _ in record.items():
            if self.responses.get((record.tenant, item)) == id:
                del self.responses[record.tenant, item]


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
        return _item_of(await self.get(StoredResponse, response, tenant, ended=True), id)

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
            holder = await self._claim_in_bucket(reply, successor)
        finally:
            if holder != successor:  # an error may follow a write that took place
                self.release(reply, successor)
        return holder

    @override
    def release(self, reply: StoredReply, successor: str) -> None:
        """Withdraws the claim in the bucket in the background."""
        super().release(reply, successor)
        self._spawn(self._release_in_bucket(reply, successor), f"release {reply.id}")

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

    async def _claim_in_bucket(self, reply: StoredReply, successor: str) -> str:
        """Claims a reply among all frontends. Returns the successor with the claim."""
        key = _claim_key(reply)
        claim = msgspec.json.encode(Claim(successor, self.owner))
        while True:
            number, value = await self._bucket.entry(key)
            earlier = decode_claim(value)
            if earlier is not None and await self._holds(earlier, reply.tenant):
                return earlier.successor
            if await self._bucket.replace(key, claim, number):
                return successor

    async def _holds(self, claim: Claim, tenant: str | None) -> bool:
        """Whether a claim in the bucket holds. One of this process does not run any more."""
        if claim.owner != self.owner and self._peers.is_alive(claim.owner):
            return True
        return await self.get(StoredReply, claim.successor, tenant, wait=False) is not None

    async def _release_in_bucket(self, reply: StoredReply, successor: str) -> None:
        """Withdraws a claim in place: a delete that arrives late would withdraw a later one."""
        key = _claim_key(reply)
        try:
            number, value = await self._bucket.entry(key)
            if decode_claim(value) == Claim(successor, self.owner):
                await self._bucket.replace(key, _WITHDRAWN, number)
        except TurnwireError as error:  # another frontend gets `in flight`, and begins a thread
            self._log.warning("stored.not_released", id=reply.id, reason=error.info.message)

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


def _claim_key(reply: StoredReply) -> str:
    return digest_key(reply.tenant, reply.id, "claim")


def _item_of(record: StoredResponse | None, id: str) -> Raw | None:
    return None if record is None else record.item(id)


def _of_tenant(value: bytes | None, id: str, tenant: str | None) -> Record | None:
    """The record in the bucket, if it is the tenant's: keys are only digests."""
    if value is None:
        return None
    record = decode(value)
    if record is None or record.id != id or record.tenant != tenant:
        return None
    return record


STORE: web.AppKey[MemoryStore] = web.AppKey("store", MemoryStore)
