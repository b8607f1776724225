"""Where responses are kept. Every store is bounded, in count, bytes and time, and shows a tenant its own only."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from msgspec import Raw, Struct

from services.frontend.responses.record import StoredResponse


class StoreLimits(Struct, frozen=True):
    """What a store may hold."""

    ttl_s: float
    entries: int
    bytes: int


class ResponseStore(Protocol):
    """Keeps responses."""

    def put(self, record: StoredResponse) -> None:
        """Keeps a record, in place of an earlier one of the same id. From this call on it can be read here."""
        ...

    async def get(self, id: str, tenant: str | None, *, patient: bool = True) -> StoredResponse | None:
        """The response with this id, if this tenant has it. `patient`: what may be on its way from another process is
        waited for, a moment. Raises TurnwireError where a shared store does not answer."""
        ...

    async def item(self, id: str, tenant: str | None) -> Raw | None:
        """An input or output item of any response of this tenant. Raises TurnwireError."""
        ...

    async def delete(self, id: str, tenant: str | None) -> bool:
        """Forgets a response, here and everywhere. False: there was none. Raises TurnwireError."""
        ...


class MemoryStore:
    """A `ResponseStore` in this process. Over a limit, what was not asked for the longest goes first."""

    def __init__(self, limits: StoreLimits, clock: Callable[[], float]) -> None:
        """`clock`: Unix time in seconds."""
        self._limits = limits
        self._clock = clock
        self._records: OrderedDict[str, StoredResponse] = OrderedDict()
        self._owners: dict[tuple[str | None, str], str] = {}
        """By tenant and item: the response that has it."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def put(self, record: StoredResponse) -> None:
        """See `ResponseStore.put`. A record that is over the limit all alone is not kept."""
        self.forget(record.id)
        self._records[record.id] = record
        self.bytes += record.size
        for item, _ in record.items():
            self._owners[record.tenant, item] = record.id
        self._shrink()

    async def get(self, id: str, tenant: str | None, *, patient: bool = True) -> StoredResponse | None:
        """See `ResponseStore.get`."""
        return self.find(id, tenant)

    async def item(self, id: str, tenant: str | None) -> Raw | None:
        """See `ResponseStore.item`."""
        record = self.find(self._owners.get((tenant, id), ""), tenant)
        return None if record is None else item_of(record, id)

    async def delete(self, id: str, tenant: str | None) -> bool:
        """See `ResponseStore.delete`."""
        if self.find(id, tenant) is None:
            return False
        self.forget(id)
        return True

    def find(self, id: str, tenant: str | None) -> StoredResponse | None:
        """As `get`, at once."""
        record = self._records.get(id)
        if record is None or record.tenant != tenant:
            return None
        if self._expired(record):
            self.forget(id)
            return None
        self._records.move_to_end(id)
        return record

    def forget(self, id: str) -> None:
        """Drops a record, whosesoever it is."""
        record = self._records.pop(id, None)
        if record is None:
            return
        self.bytes -= record.size
        for item, _ in record.items():
            if self._owners.get((record.tenant, item)) == id:
                del self._owners[record.tenant, item]

    def _expired(self, record: StoredResponse) -> bool:
        return self._clock() - record.created > self._limits.ttl_s

    def _shrink(self) -> None:
        while self._records:
            oldest = next(iter(self._records.values()))
            over = len(self._records) > self._limits.entries or self.bytes > self._limits.bytes
            if not over and not self._expired(oldest):
                return
            self.forget(oldest.id)


def item_of(record: StoredResponse, id: str) -> Raw | None:
    """The item with this id, of a response's own."""
    return next((raw for name, raw in record.items() if name == id), None)
