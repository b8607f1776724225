"""Looks up what a request continues: the items of the chain of responses before it."""

from msgspec import Raw

from schemas.errors import Invalid
from services.frontend.apis.responses.errors import previous_not_found
from services.frontend.apis.responses.store.memory import MemoryStore

MAX_CHAIN = 10_000
"""Responses in one chain. Agents make one for each tool call."""


async def chain_items(store: MemoryStore, previous: str, tenant: str | None) -> list[Raw]:
    """The inputs and outputs of the responses up to and including `previous`, in order, from the last compaction on.

    Raises Invalid where one of them is not stored or has not ended, TurnwireError where the store does not answer.
    """
    chain: list[list[Raw]] = []
    next_id: str | None = previous
    while next_id is not None:
        record = await store.get(next_id, tenant, patient=not chain)
        if record is None or len(chain) == MAX_CHAIN:
            raise previous_not_found(previous)
        if not record.ended:
            raise Invalid(f"The response with id '{next_id}' has not ended yet.", param="previous_response_id")
        chain.append([*record.input, *record.output] if record.context is None else record.context)
        next_id = record.previous if record.context is None else None
    return [item for items in reversed(chain) for item in items]
