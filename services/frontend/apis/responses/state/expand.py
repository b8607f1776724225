"""Reads what a request refers to from the store: the items of the responses that it continues, and
single items in its input."""

from itertools import chain

from msgspec import Raw

from schemas.errors import Invalid
from services.frontend.apis.responses.errors import previous_not_found
from services.frontend.apis.responses.request.body import ResponsesRequest
from services.frontend.apis.responses.state.store import MemoryStore

MAX_CHAIN = 10_000
"""The most responses in one chain. Agents create one for each tool call."""


async def history_of(
    request: ResponsesRequest, store: MemoryStore, tenant: str | None
) -> list[Raw]:
    """The items of the responses that a request continues. Raises as `chain_items`."""
    previous = request.body.previous_response_id
    return [] if previous is None else await chain_items(store, previous, tenant)


async def resolve_references(
    request: ResponsesRequest, store: MemoryStore, tenant: str | None
) -> ResponsesRequest:
    """Replaces `item_reference`s by stored items. Raises NotFound for an item that is not stored,
    TurnwireError where the store does not answer."""
    if not request.references:
        return request
    stored = await store.items(set(request.references), tenant)
    return request.with_references(stored)


async def chain_items(store: MemoryStore, previous: str, tenant: str | None) -> list[Raw]:
    """The inputs and outputs of the responses up to `previous`, in order, beginning with the last
    compaction.

    Raises Invalid where one of them is not stored or has not ended, TurnwireError where the store
    does not answer.
    """
    newest_first: list[list[Raw]] = []
    next_id: str | None = previous
    while next_id is not None:
        record = await store.get(next_id, tenant, ended=True)
        if record is None or len(newest_first) == MAX_CHAIN:
            raise previous_not_found(previous)
        if not record.ended:
            raise Invalid(
                f"The response with id '{next_id}' has not ended yet.", param="previous_response_id"
            )
        newest_first.append(record.chain_items)
        next_id = record.chain_previous
    return [*chain(*reversed(newest_first))]
