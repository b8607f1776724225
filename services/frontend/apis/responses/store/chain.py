"""Looks up what a request continues: the chain of responses before it, and the stored items that it names."""

from collections.abc import Iterable, Sequence

from msgspec import Raw

from schemas.errors import Invalid
from services.frontend.apis.responses.errors import not_found, previous_not_found
from services.frontend.apis.responses.store.memory import MemoryStore
from services.frontend.apis.responses.store.record import StoredResponse, is_response

MAX_CHAIN = 10_000
"""Responses in one chain. Agents make one for each tool call."""


class Histories:
    """Looks in several stores, in order: a connection's own, then that of the deployment."""

    def __init__(self, *stores: MemoryStore) -> None:
        self._stores = stores

    async def chain(self, previous: str, tenant: str | None) -> list[StoredResponse]:
        """The responses up to and including `previous`, oldest first, from the last compaction on.

        Raises Invalid where one of them is not stored or has not ended, TurnwireError where a store does not answer.
        """
        found: list[StoredResponse] = []
        next_id: str | None = previous
        while next_id is not None:
            record = await self._get(next_id, tenant, patient=not found)
            if record is None or len(found) == MAX_CHAIN:
                raise previous_not_found(previous)
            if not record.ended:
                raise Invalid(f"The response with id '{next_id}' has not ended yet.", param="previous_response_id")
            found.append(record)
            next_id = None if record.context is not None else record.previous
        return found[::-1]

    async def items(self, ids: Iterable[str], tenant: str | None) -> dict[str, Raw]:
        """Stored items by their ids. Raises NotFound."""
        return {id: await self._item(id, tenant) for id in ids}

    async def _item(self, id: str, tenant: str | None) -> Raw:
        for store in self._stores:
            if (item := await store.item(id, tenant)) is not None:
                return item
        raise not_found("Item", id, "input")

    async def _get(self, id: str, tenant: str | None, *, patient: bool) -> StoredResponse | None:
        for store in self._stores if is_response(id) else ():
            record = await store.get(id, tenant, patient=patient)
            if record is not None:
                return record
        return None


def items_of(chain: Sequence[StoredResponse]) -> list[Raw]:
    """The items of a chain, inputs and outputs in order."""
    items: list[Raw] = []
    for record in chain:
        items += [*record.input, *record.output] if record.context is None else record.context
    return items
