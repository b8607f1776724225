"""Reads decoded requests: with what they refer to, converted to conversations, and compacted if
necessary."""

import asyncio
from collections.abc import Sequence
from functools import partial

from msgspec import Raw
from msgspec.structs import replace

from schemas.conversation import Conversation
from schemas.events import Usage
from services.frontend.apis.responses.parse.body import DecodedRequest
from services.frontend.apis.responses.request import Responses, ResponsesRequest
from services.frontend.apis.responses.state.accepted_request import AcceptedRequest
from services.frontend.apis.responses.state.compaction import (
    exceeds_threshold,
    instructions,
    summarize,
    user_messages,
)
from services.frontend.apis.responses.state.input_items import InputItems, stored_items
from services.frontend.apis.responses.state.references import expand
from services.frontend.apis.responses.state.sealing import sealer_for
from services.frontend.apis.shared.client import Headers
from services.frontend.http.bodies import is_large
from services.frontend.stored.memory import MemoryStore
from services.frontend.turns.turn_service import ModelAccess, TurnService
from services.runtime.long_work import run_in_thread_if
from services.runtime.storage.seal import Sealer


class RequestReader:
    """Reads requests, over HTTP and over WebSockets."""

    def __init__(self, responses: Responses, store: MemoryStore, turns: TurnService) -> None:
        """Raises OSError where the sealing key cannot be read."""
        self.responses = responses
        self.store = store
        self.turns = turns
        key_file = turns.config.seal_key_file
        self._deployment_sealer = Sealer.load(key_file, "") if key_file else None

    async def read(
        self,
        decoded: DecodedRequest,
        headers: Headers,
        model: ModelAccess,
        *,
        store: MemoryStore | None = None,
    ) -> AcceptedRequest:
        """Reads a request for an answer. `store`: replaces the deployment's store.

        Raises Invalid, TooLarge for a chain over the limit of a body, NotFound for a reference to
        an item that is not stored, and TurnwireError where a store does not answer.
        """
        context = model.context
        store = self.store if store is None else store
        decoded, history = await expand(decoded, store, context.owner)
        request = await self._convert(decoded, history, headers, model)

        input_items = InputItems(decoded, context.id)
        if decoded.store and _takes_long(decoded, history):
            await asyncio.to_thread(input_items.read)

        compacted: list[Raw] | None = None
        if request.sealer is not None:  # the answer is a summary
            compacted = instructions([*history, *input_items.read()])
        elif await exceeds_threshold(decoded, request.conversation, model):
            items = [*history, *input_items.read()]
            compacted, request = await self._compact_before(request, items, headers, model)
        return AcceptedRequest(request, context.id, context.owner, input_items, compacted)

    async def read_compaction(
        self, decoded: DecodedRequest, headers: Headers, model: ModelAccess
    ) -> ResponsesRequest:
        """Reads a request for the summary of its conversation. Raises as `read`."""
        context = model.context
        decoded, history = await expand(decoded, self.store, context.owner)
        request = await self._convert(decoded, history, headers, model, compacting=True)

        takes_long = _takes_long(decoded, history)
        input_items = await run_in_thread_if(takes_long, stored_items, decoded, context.id)
        items = [*history, *input_items]
        return replace(request, stream=False, user_messages=user_messages(items))

    async def read_prompt(
        self, decoded: DecodedRequest, headers: Headers, model: ModelAccess
    ) -> Conversation:
        """Reads the conversation of a request, to count its prompt. Raises as `read`."""
        decoded, history = await expand(decoded, self.store, model.context.owner)
        request = await self._convert(decoded, history, headers, model, counting=True)
        return request.conversation

    async def _convert(
        self,
        decoded: DecodedRequest,
        history: Sequence[Raw],
        headers: Headers,
        model: ModelAccess,
        *,
        counting: bool = False,
        compacting: bool = False,
    ) -> ResponsesRequest:
        """Converts the client's request, or one that a compaction makes of it. Raises as
        `Responses.convert`."""
        convert = partial(
            self.responses.convert,
            sealer=sealer_for(decoded.model, model, self._deployment_sealer),
            counting=counting,
            compacting=compacting,
        )
        takes_long = _takes_long(decoded, history)
        return await run_in_thread_if(takes_long, convert, decoded, headers, history)

    async def _compact_before(
        self, request: ResponsesRequest, items: list[Raw], headers: Headers, model: ModelAccess
    ) -> tuple[list[Raw], ResponsesRequest]:
        """Replaces the conversation by a summary before it is answered. Raises TurnwireError.

        `items`: the whole conversation. Returns the items that replace it, and the request with
        them.
        """
        decoded = request.decoded
        whole = decoded.with_items(items)
        summary_request = await self._convert(whole, [], headers, model, compacting=True)
        summary = await summarize(summary_request, model)

        last_question = user_messages(items)[-1:]
        compacted = [*instructions(items), *summary.items, *last_question]
        short = decoded.with_items(compacted)
        shortened = await self._convert(short, [], headers, model)

        shape = replace(shortened.shape, before=summary.items, spent=summary.usage or Usage())
        answered = replace(shortened, decoded=decoded, notes=request.notes, shape=shape)
        return compacted, answered


def _takes_long(decoded: DecodedRequest, history: Sequence[Raw]) -> bool:
    """Whether a request is converted in a thread."""
    return is_large(*history, *decoded.items, *(decoded.body.tools or ()))
