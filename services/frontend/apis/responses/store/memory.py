"""Keeps responses in memory, bounded in count, bytes and time; each tenant sees only its own."""

from collections.abc import Callable

from cachetools import Cache, LRUCache
from msgspec import Raw, Struct

from services.frontend.apis.responses.store.record import StoredResponse


class StoreLimits(Struct, frozen=True):
    """The limits of a store."""

    ttl_s: float
    entries: int
    bytes: int


class MemoryStore:
    """Keeps responses in this process. Over a limit, the least recently used are dropped."""

    def __init__(self, limits: StoreLimits, clock: Callable[[], float], *, behind: "MemoryStore | None" = None) -> None:
        """`clock`: Unix time in seconds. `behind`: has the responses and items that this store lacks."""
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
        """Keeps a record, in place of an earlier one with its id; it can be read as soon as this returns. A record that
        is over the limit by itself is not kept."""
        self.forget(record.id)
        try:
            self._records[record.id] = record
        except ValueError:  # too large
            return
        while len(self._records) > self._limits.entries:
            self._records.popitem()
        while (first := next(iter(self._records), None)) and self._expired(self._records.peek(first)):
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

    async def get(self, id: str, tenant: str | None, *, patient: bool = True) -> StoredResponse | None:
        """The tenant's response with this id. `patient`: wait a moment for one that may be on its way from another
        process. Raises TurnwireError where a shared store does not answer."""
        record = self.find(id, tenant)
        if record is None and self._behind is not None:
            return await self._behind.get(id, tenant, patient=patient)
        return record

    async def item(self, id: str, tenant: str | None) -> Raw | None:
        """An input or output item of any of the tenant's responses. Raises as `get`."""
        record = self.find(self._records.owners.get((tenant, id), ""), tenant)
        if record is None and self._behind is not None:
            return await self._behind.item(id, tenant)
        return None if record is None else record.item(id)

    async def delete(self, id: str, tenant: str | None) -> bool:
        """Deletes a response everywhere. Returns False where there was none. Raises as `get`."""
        found = self.find(id, tenant) is not None
        if found:
            self.forget(id)
        return found

    def forget(self, id: str) -> None:
        """Drops a record of any tenant from this process."""
        self._records.pop(id, None)

    async def settled(self) -> None:
        """Waits until every record that was put before this call is where it is kept."""

    def _expired(self, record: StoredResponse) -> bool:
        return self._clock() - record.created > self._limits.ttl_s


class _Records(LRUCache[str, StoredResponse]):
    """Records by id, with an index of their items."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, getsizeof=lambda record: record.size)
        self.owners: dict[tuple[str | None, str], str] = {}
        """By tenant and item id: the response that has the item."""

    def peek(self, id: str) -> StoredResponse:
        """The record, which does not count as used."""
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
