"""Responses that several frontends share: a memory of each one's own, and a JetStream bucket behind all of them.

What one frontend keeps goes to the bucket at once; another that is asked for it looks there, and looks again for a
moment, since a client may be faster than the bus. What was deleted is called out, so that nobody's memory shows it.
"""

import asyncio
from collections.abc import Callable

from msgspec import Raw, Struct
from structlog.typing import FilteringBoundLogger

from schemas.control import ResponseNotice
from schemas.errors import TooLarge, TurnwireError
from services.frontend.responses.record import (
    StoredResponse,
    decode,
    encode,
    failed_view,
    response_of_item,
    without_events,
)
from services.frontend.responses.store import MemoryStore, item_of
from services.runtime.config import FrontendConfig
from services.runtime.kv import Bucket, BucketConfig, digest_key

BUCKET = "tw_responses"
MAX_VALUE_BYTES = 7 * 1024 * 1024
"""Below the 8 MB that the bus takes."""
WAITS_S = (0.02, 0.05, 0.1, 0.2)
"""Pauses between the looks at the bucket for something that may be on its way."""


class Peers(Struct, frozen=True):
    """What a shared store asks of the process that it is in."""

    id: str
    """The process's own id."""
    alive: Callable[[str], bool]
    """Whether a frontend with this id is there."""
    call_out: Callable[[ResponseNotice], object]
    """Tells every other frontend."""
    spawn: Callable[..., "asyncio.Task[None]"]
    """`Process.spawn`."""


def bucket_config(config: FrontendConfig) -> BucketConfig:
    """The bucket in which stored responses lie."""
    return BucketConfig(
        name=BUCKET,
        description="Turnwire: stored responses",
        ttl_s=config.response_store_ttl_s,
        max_bytes=config.response_store_bytes,
        max_value_bytes=MAX_VALUE_BYTES,
    )


class SharedStore:
    """A `ResponseStore` of which every frontend has a part in memory."""

    def __init__(self, memory: MemoryStore, bucket: Bucket, peers: Peers, log: FilteringBoundLogger) -> None:
        self._memory = memory
        self._bucket = bucket
        self._peers = peers
        self._log = log
        self._writes: dict[str, asyncio.Task[None]] = {}

    def put(self, record: StoredResponse) -> None:
        """See `ResponseStore.put`. The bucket gets it in the background; later states of one response in order."""
        self._memory.put(record)
        before = self._writes.get(record.id)
        task = self._peers.spawn(self._write(record, before), f"keep {record.id}")
        self._writes[record.id] = task
        task.add_done_callback(lambda done: self._written(record.id, done))

    async def get(self, id: str, tenant: str | None, *, patient: bool = True) -> StoredResponse | None:
        """See `ResponseStore.get`."""
        record = self._memory.find(id, tenant)
        if record is not None and (record.ended or record.owner == self._peers.id):
            return record
        key = digest_key(tenant, id)
        value = await self._bucket.get(key)
        for pause in WAITS_S if patient else ():
            if value is not None:
                break
            await asyncio.sleep(pause)
            value = await self._bucket.get(key)
        record = decode(value) if value is not None else None
        if record is None or record.tenant != tenant or record.id != id:
            return None
        if record.ended:
            self._memory.put(record)
        elif not self._peers.alive(record.owner):
            return failed_view(record)
        return record

    async def item(self, id: str, tenant: str | None) -> Raw | None:
        """See `ResponseStore.item`. Items with ids that clients made are found by the frontend that kept them."""
        found = await self._memory.item(id, tenant)
        owner = response_of_item(id)
        if found is not None or owner is None:
            return found
        record = await self.get(owner, tenant)
        return None if record is None else item_of(record, id)

    async def delete(self, id: str, tenant: str | None) -> bool:
        """See `ResponseStore.delete`."""
        if await self.get(id, tenant, patient=False) is None:
            return False
        self._memory.forget(id)
        if (write := self._writes.get(id)) is not None:
            await asyncio.wait([write])
        await self._bucket.delete(digest_key(tenant, id))
        self._peers.call_out(ResponseNotice("forget", id))
        return True

    def forget(self, id: str) -> None:
        """Another frontend deleted it."""
        self._memory.forget(id)

    async def settled(self) -> None:
        """Waits until the bucket has everything that was put before this call."""
        if self._writes:
            await asyncio.wait(list(self._writes.values()))

    async def _write(self, record: StoredResponse, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait([before])
        key, value = digest_key(record.tenant, record.id), encode(record)
        if len(value) > MAX_VALUE_BYTES:
            value = encode(without_events(record))
        try:
            await self._bucket.put(key, value)
        except TooLarge:
            self._log.warning("responses.not_shared", response=record.id, bytes=len(value), reason="too large")
        except TurnwireError as error:
            self._log.warning("responses.not_shared", response=record.id, reason=error.info.message)

    def _written(self, id: str, task: "asyncio.Task[None]") -> None:
        if self._writes.get(id) is task:
            del self._writes[id]
