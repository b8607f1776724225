"""The store that several frontends share: each one's memory, with a JetStream bucket behind them.

A response is written to the bucket at once. Another frontend reads it there, and tries again for a moment, since a
client may be faster than the bus. Deletions are published, so that no frontend's memory keeps the response.
"""

import asyncio
from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from schemas.control import FrontendNotice
from schemas.errors import TooLarge, TurnwireError
from services.frontend.apis.responses.store.memory import MemoryStore, StoreLimits
from services.frontend.apis.responses.store.record import StoredResponse, decode, failed_view, response_of_item
from services.runtime.config import ResponseStoreConfig
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.runtime.storage.kv import Bucket, BucketConfig, digest_key

BUCKET = "tw_responses"
MAX_VALUE_BYTES = 7 * 1024 * 1024
"""Below the 8 MB of the bus."""
WAITS_S = (0.02, 0.05, 0.1, 0.2)
"""Pauses before reading the bucket again for a response that may be on its way."""


class Sharing(Struct, frozen=True):
    """Access to the bucket that several frontends share, and to the process."""

    bucket: Bucket
    id: str
    """The process's own id."""
    alive: Callable[[str], bool]
    """Whether a frontend with this id is alive."""
    publish_notice: Callable[[FrontendNotice], object]
    """Publishes to every other frontend."""
    spawn: Callable[..., "asyncio.Task[None]"]
    """`Process.spawn`."""


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
    """The store of several frontends: what this one uses is in its memory, everything is in the bucket."""

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

    def put(self, record: StoredResponse) -> None:
        """See `MemoryStore.put`. The bucket is written in the background, the states of one response in order."""
        super().put(record)
        before = self._writes.get(record.id)
        task = self._sharing.spawn(self._write(record, before), f"keep {record.id}")
        self._writes[record.id] = task
        task.add_done_callback(lambda done: self._written(record.id, done))

    async def get(self, id: str, tenant: str | None, *, patient: bool = True) -> StoredResponse | None:
        """See `MemoryStore.get`."""
        record = self.find(id, tenant)
        if record is not None and (record.ended or record.owner == self._sharing.id):
            return record
        key = digest_key(tenant, id)
        value = await self._sharing.bucket.get(key)
        for pause in WAITS_S if patient else ():
            if value is not None:
                break
            await asyncio.sleep(pause)
            value = await self._sharing.bucket.get(key)
        record = _own(value, id, tenant)
        if record is None:
            return None
        if record.ended:
            super().put(record)
        elif not self._sharing.alive(record.owner):
            return failed_view(record)
        return record

    async def item(self, id: str, tenant: str | None) -> Raw | None:
        """See `MemoryStore.item`. Items with ids that clients made are found only by the frontend that kept them."""
        found = await super().item(id, tenant)
        owner = response_of_item(id)
        if found is not None or owner is None:
            return found
        record = await self.get(owner, tenant)
        return None if record is None else record.item(id)

    async def delete(self, id: str, tenant: str | None) -> bool:
        """See `MemoryStore.delete`."""
        if await self.get(id, tenant, patient=False) is None:
            return False
        self.forget(id)
        if (write := self._writes.get(id)) is not None:
            await asyncio.wait([write])
        await self._sharing.bucket.delete(digest_key(tenant, id))
        self._sharing.publish_notice(FrontendNotice("forget", id))
        return True

    async def settled(self) -> None:
        """See `MemoryStore.settled`."""
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
            self._log.warning("responses.not_shared", response=record.id, bytes=len(value), reason="too large")
        except TurnwireError as error:
            self._log.warning("responses.not_shared", response=record.id, reason=error.info.message)

    def _written(self, id: str, task: "asyncio.Task[None]") -> None:
        if self._writes.get(id) is task:
            del self._writes[id]


def _own(value: bytes | None, id: str, tenant: str | None) -> StoredResponse | None:
    """The record in the bucket, if it is the tenant's: keys are digests."""
    record = None if value is None else decode(value)
    return record if record is not None and (record.id, record.tenant) == (id, tenant) else None
