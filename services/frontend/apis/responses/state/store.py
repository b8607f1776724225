"""Keeps responses in memory, bounded in count, bytes and time; each tenant sees only its own.

Several frontends share a `SharedStore`: each has its own memory, and all use one JetStream bucket.

A response is written to the bucket at once. Another frontend reads it there, and retries for a
moment, since a client may be faster than the bus, and than the copies of a replicated bucket.
Deletions are published, so that every frontend drops the response.
"""

import asyncio
from collections.abc import Callable

import msgspec
from aiohttp import web
from cachetools import Cache, LRUCache
from msgspec import Raw, Struct
from msgspec.structs import replace
from typing_extensions import override

from schemas.control import ResponseDeleted, ResponseNotice
from schemas.errors import TooLarge, TurnwireError
from services.frontend.apis.responses.state.record import (
    StoredResponse,
    decode,
    failed_view,
    response_of_item,
)
from services.runtime.config import ResponseStoreConfig
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.runtime.storage.kv import Bucket, BucketConfig, digest_key

BUCKET = "tw_responses"
MAX_VALUE_BYTES = 7 * 1024 * 1024
"""The largest value in bytes, below the bus's limit of 8 MB."""
WAITS_S = (0.02, 0.05, 0.1, 0.2)
"""Pauses before reading the bucket again for a response that may be on its way. Replicas get 1 MB
within 30 ms."""


class StoreLimits(Struct, frozen=True):
    """The limits of a store."""

    ttl_s: float
    entries: int
    bytes: int


class MemoryStore:
    """Keeps responses in this process. Above a limit, the least recently used are dropped."""

    def __init__(
        self,
        limits: StoreLimits,
        clock: Callable[[], float],
        *,
        behind: "MemoryStore | None" = None,
    ) -> None:
        """`clock`: Unix time in seconds. `behind`: has the responses and items that this store
        lacks."""
        self._behind = behind
        self._limits = limits
        self._clock = clock
        self._records = _Records(limits.bytes)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def bytes(self) -> int:
        """The approximate size of all records."""
        return int(self._records.currsize)

    def put(self, record: StoredResponse) -> None:
        """Keeps a record in place of an earlier one with its id; it can be read once this returns.
        A record larger than the limit is not kept."""
        self.forget(record.id)
        try:
            self._records[record.id] = record
        except ValueError:  # too large
            return
        while len(self._records) > self._limits.entries:
            self._records.popitem()
        while (first := next(iter(self._records), None)) and self._expired(
            self._records.peek(first)
        ):
            self.forget(first)

    def find(self, id: str, tenant: str | None) -> StoredResponse | None:
        """The tenant's response with this id, if it is in this process."""
        record = self._records.peek(id) if id in self._records else None
        if record is None or record.tenant != tenant:
            return None
        if self._expired(record):
            self.forget(id)
            return None
        return self._records[id]

    async def get(
        self, id: str, tenant: str | None, *, ended: bool = False
    ) -> StoredResponse | None:
        """The tenant's response with this id. `ended`: the client may know of its end. Raises
        TurnwireError where a shared store does not answer."""
        record = self.find(id, tenant)
        if record is None and self._behind is not None:
            return await self._behind.get(id, tenant, ended=ended)
        return record

    async def item(self, id: str, tenant: str | None) -> Raw | None:
        """An input or output item of any of the tenant's responses. Raises as `get`."""
        record = self.find(self._records.owners.get((tenant, id), ""), tenant)
        if record is None and self._behind is not None:
            return await self._behind.item(id, tenant)
        return None if record is None else record.item(id)

    async def delete(self, id: str, tenant: str | None) -> bool:
        """Deletes a response everywhere. Returns False where there was none. Raises as `get`."""
        existed = self.find(id, tenant) is not None
        if existed:
            self.forget(id)
        return existed

    def forget(self, id: str) -> None:
        """Drops a record of any tenant from this process."""
        self._records.pop(id, None)

    async def wait_for_writes(self) -> None:
        """Waits until every record that was put before this call is stored."""

    def _expired(self, record: StoredResponse) -> bool:
        return self._clock() - record.created > self._limits.ttl_s


class _Records(LRUCache[str, StoredResponse]):
    """Records by id, with an index of their items."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, getsizeof=lambda record: record.size)
        self.owners: dict[tuple[str | None, str], str] = {}
        """The response that has an item, by tenant and item id."""

    def peek(self, id: str) -> StoredResponse:
        """The record; reading it does not count as use."""
        return Cache.__getitem__(self, id)

    def __setitem__(self, id: str, record: StoredResponse) -> None:
        super().__setitem__(id, record)
        for item, _ in record.items():
            self.owners[record.tenant, item] = id

    def __delitem__(self, id: str) -> None:
        record = self.peek(id)
        super().__delitem__(id)
        for item, _ in record.items():
            if self.owners.get((record.tenant, item)) == id:
                del self.owners[record.tenant, item]


class Sharing(Struct, frozen=True):
    """Access to the bucket that several frontends share, and to functions of the process."""

    bucket: Bucket
    id: str
    """This process's id."""
    alive: Callable[[str], bool]
    """Whether a frontend with this id is alive."""
    publish_notice: Callable[[ResponseNotice], object]
    """Publishes a notice to every other frontend."""
    spawn: Callable[..., "asyncio.Task[None]"]
    """`Process.spawn`."""


SHARING: web.AppKey[Sharing] = web.AppKey("sharing", Sharing)
"""Set if frontends share their responses."""


def bucket_config(config: ResponseStoreConfig) -> BucketConfig:
    """The bucket of stored responses."""
    return BucketConfig(
        name=BUCKET,
        description="Turnwire: stored responses",
        ttl_s=config.response_store_ttl_s,
        max_bytes=config.response_store_bytes,
        max_value_bytes=MAX_VALUE_BYTES,
    )


class SharedStore(MemoryStore):
    """The store of several frontends: recent responses in this process's memory, all of them in the
    bucket."""

    def __init__(
        self,
        limits: StoreLimits,
        clock: Callable[[], float],
        sharing: Sharing,
        log: FilteringBoundLogger,
    ) -> None:
        super().__init__(limits, clock)
        self._sharing = sharing
        self._log = log
        self._writes: dict[str, asyncio.Task[None]] = {}

    @override
    def put(self, record: StoredResponse) -> None:
        """Writes to the bucket in the background, the states of one response in order."""
        super().put(record)
        before = self._writes.get(record.id)
        task = self._sharing.spawn(self._write(record, before), f"keep {record.id}")
        self._writes[record.id] = task
        task.add_done_callback(lambda done: self._written(record.id, done))

    @override
    async def get(
        self, id: str, tenant: str | None, *, ended: bool = False
    ) -> StoredResponse | None:
        record = self.find(id, tenant)
        if record is not None and (record.ended or record.owner == self._sharing.id):
            return record
        key = digest_key(tenant, id)
        for pause in (0.0, *WAITS_S):
            await asyncio.sleep(pause)
            record = _own(await self._sharing.bucket.get(key), id, tenant)
            if record is not None and (record.ended or not ended):
                break
        if record is None:
            return None
        if record.ended:
            super().put(record)
        elif not self._sharing.alive(record.owner):
            return failed_view(record)
        return record

    @override
    async def item(self, id: str, tenant: str | None) -> Raw | None:
        """Only the frontend that stored them finds items with ids from clients."""
        item = await super().item(id, tenant)
        owner = response_of_item(id)
        if item is not None or owner is None:
            return item
        record = await self.get(owner, tenant, ended=True)
        return None if record is None else record.item(id)

    @override
    async def delete(self, id: str, tenant: str | None) -> bool:
        if await self.get(id, tenant) is None:
            return False
        self.forget(id)
        if (write := self._writes.get(id)) is not None:
            await asyncio.wait([write])
        await self._sharing.bucket.delete(digest_key(tenant, id))
        self._sharing.publish_notice(ResponseDeleted(id))
        return True

    @override
    async def wait_for_writes(self) -> None:
        if self._writes:
            await asyncio.wait(list(self._writes.values()))

    async def _write(self, record: StoredResponse, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait([before])
        key, value = digest_key(record.tenant, record.id), msgspec.json.encode(record)
        if len(value) > MAX_VALUE_BYTES:
            value = msgspec.json.encode(replace(record, events=b""))
        try:
            await self._sharing.bucket.put(key, value)
        except TooLarge:
            self._log.warning(
                "responses.not_shared", response=record.id, bytes=len(value), reason="too large"
            )
        except TurnwireError as error:
            self._log.warning("responses.not_shared", response=record.id, reason=error.info.message)

    def _written(self, id: str, task: "asyncio.Task[None]") -> None:
        if self._writes.get(id) is task:
            del self._writes[id]


def _own(value: bytes | None, id: str, tenant: str | None) -> StoredResponse | None:
    """The record in the bucket, if it is the tenant's; keys are digests, so the record is checked."""
    record = None if value is None else decode(value)
    return record if record is not None and (record.id, record.tenant) == (id, tenant) else None
