"""Accepts requests: reads what they refer to, converts them to conversations, and compacts a
conversation if necessary."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Raw
from msgspec.structs import replace

from schemas.conversation import Conversation
from schemas.events import Usage
from services.frontend.apis.responses.dialect import ConvertedRequest, Responses
from services.frontend.apis.responses.request.body import ResponsesRequest
from services.frontend.apis.responses.request.compaction import TextSealer
from services.frontend.apis.responses.state.compaction import (
    exceeds_threshold,
    instructions,
    summarize,
    user_messages,
)
from services.frontend.apis.responses.state.expand import history_of, resolve_references
from services.frontend.apis.responses.state.recording import AcceptedRequest, InputItems
from services.frontend.apis.responses.state.sealing import Sealers
from services.frontend.apis.responses.state.store import MemoryStore
from services.frontend.apis.shared.client import Headers
from services.frontend.http.bodies import is_large, run_in_thread_if
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
        compacting: bool = False,
    ) -> AcceptedRequest:
        """Converts a request. `store`: replaces the deployment's store.

        Raises Invalid, NotFound for a reference to an item that is not stored, and TurnwireError
        where a store does not answer.
        """
        context = model.context
        store = self.store if store is None else store
        reader = self._reader(request, headers, model)
        history = await history_of(request, store, context.tenant)
        request = await resolve_references(request, store, context.tenant)

        large = _is_large(request, history)
        converted = await reader.read(request, history, in_thread=large, compacting=compacting)
        input_items = InputItems(request, context.id)
        if large and request.store:
            await asyncio.to_thread(input_items.read)

        compacted: list[Raw] | None = None
        if converted.sealer is not None:  # the answer is a summary
            items = [*history, *input_items.read()]
            compacted = instructions(items)
            if compacting:
                converted = replace(converted, user_messages=user_messages(items))
        elif await exceeds_threshold(request, converted.conversation, model):
            items = [*history, *input_items.read()]
            compacted, converted = await _compact_before(converted, items, reader, model, large)
        return AcceptedRequest(converted, context.id, context.tenant, input_items, compacted)

    async def prompt(
        self, request: ResponsesRequest, headers: Headers, model: ModelAccess
    ) -> Conversation:
        """The conversation of a request for counting. Raises as `accept`."""
        reader = self._reader(request, headers, model)
        history = await history_of(request, self.store, model.context.tenant)
        request = await resolve_references(request, self.store, model.context.tenant)
        large = _is_large(request, history)
        converted = await reader.read(request, history, in_thread=large, counting=True)
        return converted.conversation

    def _reader(
        self, request: ResponsesRequest, headers: Headers, model: ModelAccess
    ) -> "_RequestReader":
        return _RequestReader(self.dialect, headers, self._sealers.sealer(request.model, model))


@dataclass(frozen=True)
class _RequestReader:
    """Converts the inputs of one request: the client's, and those that a compaction makes of it."""

    dialect: Responses
    headers: Headers
    sealer: TextSealer

    async def read(
        self,
        request: ResponsesRequest,
        history: Sequence[Raw] = (),
        *,
        in_thread: bool,
        counting: bool = False,
        compacting: bool = False,
    ) -> ConvertedRequest:
        """Converts a request. Raises as `Responses.understand`."""
        return await run_in_thread_if(
            in_thread,
            lambda: self.dialect.understand(
                request,
                self.headers,
                history,
                sealer=self.sealer,
                counting=counting,
                compacting=compacting,
            ),
        )


async def _compact_before(
    converted: ConvertedRequest,
    items: list[Raw],
    reader: _RequestReader,
    model: ModelAccess,
    in_thread: bool,
) -> tuple[list[Raw], ConvertedRequest]:
    """Replaces the conversation by a summary before it is answered. Raises TurnwireError.

    `items`: the whole conversation. Returns the items that replace it, and the request with them.
    """
    request = converted.request
    summary_request = await reader.read(
        request.with_items(items), in_thread=in_thread, compacting=True
    )
    summary = await summarize(summary_request, model)

    last_question = user_messages(items)[-1:]
    compacted = [*instructions(items), *summary.items, *last_question]
    shortened = await reader.read(request.with_items(compacted), in_thread=False)
    shape = replace(shortened.shape, before=summary.items, spent=summary.usage or Usage())
    answered = replace(shortened, request=request, notes=converted.notes, shape=shape)
    return compacted, answered


def _is_large(request: ResponsesRequest, history: Sequence[Raw]) -> bool:
    return is_large(*history, *request.items, *(request.body.tools or ()))
