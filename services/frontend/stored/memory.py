"""Keeps responses, replies of message threads and the hidden parts of answers in memory, bounded in
count, bytes and time; each tenant sees only its own."""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TypeAlias, TypeVar

from cachetools import Cache, LRUCache
from msgspec import Raw, Struct
from typing_extensions import override

from schemas.errors import TooLarge
from services.frontend.stored.record import Record, StoredRecord, StoredReply, StoredResponse
from services.runtime.config.base import MIB
from services.runtime.config.frontend import FrontendConfig

R = TypeVar("R", bound=StoredRecord)
Clock: TypeAlias = Callable[[], float]
"""Unix time in seconds."""


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
        """The tenant's record of this kind and id. Raises TurnwireError if a shared store does not
        answer.

        `ended`: wait for its last state, which the client may have seen. `wait`: try again, because
        another frontend may just be writing it.
        """
        return self.find(kind, id, tenant)

    async def item(self, id: str, tenant: str | None) -> Raw | None:
        """An input or output item of any of the tenant's responses. Raises as `get`."""
        response = self._records.responses.get((tenant, id), "")
        return item_of(self.find(StoredResponse, response, tenant), id)

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
    """The records of one connection, in front of the deployment's store, which has the others."""

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


def item_of(record: StoredResponse | None, id: str) -> Raw | None:
    """The item with this id, if the record is there and has it."""
    return None if record is None else record.item(id)
