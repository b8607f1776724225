"""Reads what a request refers to from the store: the items of the responses that it continues, and
single items in its input."""

from itertools import chain

from msgspec import Raw

from schemas.errors import Invalid
from services.frontend.apis.responses.errors import previous_not_found
from services.frontend.apis.responses.parse.body import DecodedRequest
from services.frontend.stored.memory import MemoryStore
from services.frontend.stored.record import StoredResponse, raw_size

MAX_CHAIN = 10_000
"""The most responses in one chain. Agents create one for each tool call."""


async def expand(
    decoded: DecodedRequest, store: MemoryStore, tenant: str | None
) -> tuple[DecodedRequest, list[Raw]]:
    """Reads what a request refers to. Raises NotFound for an item that is not stored, and as
    `chain_items`.

    Returns the request with stored items in place of the references to them, and the items of the
    responses that it continues.
    """
    history: list[Raw] = []
    previous = decoded.body.previous_response_id
    if previous is not None:
        history = await chain_items(store, previous, tenant)
    if decoded.references:
        stored = await store.items(set(decoded.references), tenant)
        decoded = decoded.with_references(stored)
    return decoded, history


async def chain_items(store: MemoryStore, previous: str, tenant: str | None) -> list[Raw]:
    """The inputs and outputs of the responses up to `previous`, in order, beginning with the last
    compaction.

    Raises Invalid where one of them is not stored or has not ended, or where they are more than
    `MAX_CHAIN`, TooLarge where they have more bytes than a request may, TurnwireError where the
    store does not answer.
    """
    newest_first: list[list[Raw]] = []
    size = 0
    next_id: str | None = previous
    while next_id is not None:
        record = await store.get(StoredResponse, next_id, tenant, ended=True)
        if record is None:
            raise previous_not_found(previous)
        if len(newest_first) == MAX_CHAIN:
            raise Invalid(
                f"The response with id '{previous}' continues more than {MAX_CHAIN} others.",
                param="previous_response_id",
            )
        if not record.ended:
            raise Invalid(
                f"The response with id '{next_id}' has not ended yet.", param="previous_response_id"
            )
        items = record.chain_items
        size += raw_size(items)
        store.limits.check_chain(size, "previous_response_id")
        newest_first.append(items)
        next_id = record.chain_previous
    return [*chain(*reversed(newest_first))]
