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
from services.frontend.apis.responses.state.recording import AcceptedRequest
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
        accepted = AcceptedRequest(converted, context.id, context.tenant)
        if large and request.store:
            # A small input is prepared for the store after the answer, when no client waits.
            await asyncio.to_thread(lambda: accepted.items)

        if converted.sealer is not None:  # the answer is a summary
            items = [*history, *accepted.items]
            accepted.compacted = instructions(items)
            if compacting:
                accepted.converted = replace(accepted.converted, user_messages=user_messages(items))
        elif await exceeds_threshold(request, converted.conversation, model):
            await _compact_before(accepted, history, reader, model)
        return accepted

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
    accepted: AcceptedRequest, history: Sequence[Raw], reader: _RequestReader, model: ModelAccess
) -> None:
    """Replaces the conversation by a summary before it is answered. Raises TurnwireError."""
    request = accepted.converted.request
    items = [*history, *accepted.items]
    summary_request = await reader.read(
        request.with_items(items), in_thread=_is_large(request, history), compacting=True
    )
    summary = await summarize(summary_request, model)

    last_question = user_messages(items)[-1:]
    accepted.compacted = [*instructions(items), *summary.items, *last_question]
    converted = await reader.read(request.with_items(accepted.compacted), in_thread=False)
    shape = replace(converted.shape, before=summary.items, spent=summary.usage or Usage())
    accepted.converted = replace(
        converted, request=request, notes=accepted.converted.notes, shape=shape
    )


def _is_large(request: ResponsesRequest, history: Sequence[Raw]) -> bool:
    return is_large(*history, *request.items, *(request.body.tools or ()))
