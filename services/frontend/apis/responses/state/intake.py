"""Accepts requests: reads what they refer to, converts them to conversations, and compacts a
conversation if necessary."""

import asyncio

from msgspec import Raw
from msgspec.structs import replace

from schemas.conversation import Conversation
from schemas.events import Usage
from services.frontend.apis.responses.dialect import ConvertedRequest, Responses
from services.frontend.apis.responses.request.body import ResponsesRequest
from services.frontend.apis.responses.state.compaction import (
    exceeds_threshold,
    instructions,
    summarize,
    user_messages,
)
from services.frontend.apis.responses.state.expand import ExpandedRequest, expand
from services.frontend.apis.responses.state.input_items import stored_items
from services.frontend.apis.responses.state.recording import AcceptedRequest, InputItems
from services.frontend.apis.responses.state.sealing import Sealers
from services.frontend.apis.shared.client import Headers
from services.frontend.http.bodies import is_large, run_in_thread_if
from services.frontend.stored.store import MemoryStore
from services.frontend.turns.turn_service import ModelAccess, TurnService


class Intake:
    """Accepts requests."""

    def __init__(
        self, dialect: Responses, store: MemoryStore, sealers: Sealers, turns: TurnService
    ) -> None:
        self.dialect = dialect
        self.store = store
        self.turns = turns
        self._sealers = sealers

    async def accept(
        self,
        request: ResponsesRequest,
        headers: Headers,
        model: ModelAccess,
        *,
        store: MemoryStore | None = None,
    ) -> AcceptedRequest:
        """Converts a request. `store`: replaces the deployment's store.

        Raises Invalid, TooLarge for a chain over the limit of a body, NotFound for a reference to
        an item that is not stored, and TurnwireError where a store does not answer.
        """
        context = model.context
        store = self.store if store is None else store
        expanded = await expand(request, store, context.owner)
        converted = await self._convert(expanded, headers, model)

        input_items = InputItems(expanded.request, context.id)
        if expanded.is_large and request.store:
            await asyncio.to_thread(input_items.read)

        compacted: list[Raw] | None = None
        if converted.sealer is not None:  # the answer is a summary
            compacted = instructions([*expanded.history, *input_items.read()])
        elif await exceeds_threshold(expanded.request, converted.conversation, model):
            items = [*expanded.history, *input_items.read()]
            compacted, converted = await self._compact_before(converted, items, headers, model)
        return AcceptedRequest(converted, context.id, context.owner, input_items, compacted)

    async def compact(
        self, request: ResponsesRequest, headers: Headers, model: ModelAccess
    ) -> ConvertedRequest:
        """Converts a request for the summary of its conversation. Raises as `accept`."""
        context = model.context
        expanded = await expand(request, self.store, context.owner)
        converted = await self._convert(expanded, headers, model, compacting=True)

        input_items = await run_in_thread_if(
            expanded.is_large, stored_items, expanded.request, context.id
        )
        items = [*expanded.history, *input_items]
        return replace(converted, user_messages=user_messages(items))

    async def prompt(
        self, request: ResponsesRequest, headers: Headers, model: ModelAccess
    ) -> Conversation:
        """The conversation of a request for counting. Raises as `accept`."""
        expanded = await expand(request, self.store, model.context.owner)
        converted = await self._convert(expanded, headers, model, counting=True)
        return converted.conversation

    async def _convert(
        self,
        expanded: ExpandedRequest,
        headers: Headers,
        model: ModelAccess,
        *,
        counting: bool = False,
        compacting: bool = False,
    ) -> ConvertedRequest:
        """Converts the client's request, or one that a compaction makes of it. Raises as
        `Responses.convert`."""
        request = expanded.request
        return await run_in_thread_if(
            expanded.is_large,
            lambda: self.dialect.convert(
                request,
                headers,
                expanded.history,
                sealer=self._sealers.sealer(request.model, model),
                counting=counting,
                compacting=compacting,
            ),
        )

    async def _compact_before(
        self, converted: ConvertedRequest, items: list[Raw], headers: Headers, model: ModelAccess
    ) -> tuple[list[Raw], ConvertedRequest]:
        """Replaces the conversation by a summary before it is answered. Raises TurnwireError.

        `items`: the whole conversation. Returns the items that replace it, and the request with
        them.
        """
        request = converted.request
        whole = ExpandedRequest(request.with_items(items), [], is_large(*items))
        summary_request = await self._convert(whole, headers, model, compacting=True)
        summary = await summarize(summary_request, model)

        last_question = user_messages(items)[-1:]
        compacted = [*instructions(items), *summary.items, *last_question]
        short = ExpandedRequest(request.with_items(compacted), [], is_large=False)
        shortened = await self._convert(short, headers, model)

        shape = replace(shortened.shape, before=summary.items, spent=summary.usage or Usage())
        answered = replace(shortened, request=request, notes=converted.notes, shape=shape)
        return compacted, answered
