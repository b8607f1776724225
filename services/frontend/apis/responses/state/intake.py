"""Accepts requests: completes the input, converts it to a conversation, and compacts the
conversation if necessary."""

from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from schemas.conversation import Conversation
from schemas.events import Usage
from services.frontend.apis.responses.dialect import Responses
from services.frontend.apis.responses.request.body import ResponsesRequest
from services.frontend.apis.responses.request.items import TextSealer
from services.frontend.apis.responses.state.compaction import (
    exceeds_threshold,
    instructions,
    summarize,
    user_messages,
)
from services.frontend.apis.responses.state.expand import expand
from services.frontend.apis.responses.state.keep import AcceptedRequest
from services.frontend.apis.responses.state.store import MemoryStore
from services.frontend.http.bodies import is_large, run_in_thread_if
from services.frontend.http.middleware import RequestContext
from services.frontend.turns.turn_runner import TurnRunner

SealerOf = Callable[[str, RequestContext], TextSealer]
"""Returns the sealer for a model, by the name in the request, and for the request's tenant."""


class Intake:
    """Accepts requests."""

    def __init__(
        self, dialect: Responses, store: MemoryStore, sealer_of: SealerOf, turns: TurnRunner
    ) -> None:
        self.dialect = dialect
        self.store = store
        self.turns = turns
        self._sealer_of = sealer_of

    async def accept(
        self,
        request: ResponsesRequest,
        headers: Mapping[str, str],
        context: RequestContext,
        *,
        store: MemoryStore | None = None,
        compacting: bool = False,
    ) -> AcceptedRequest:
        """Converts a request. `store`: replaces the deployment's store.

        Raises Invalid, NotFound for a reference to an item that is not stored, and TurnwireError
        where a store does not answer.
        """
        whole = await expand(request, self.store if store is None else store, context.tenant)
        own, large = whole.own(), _is_large(whole)
        understand = partial(
            self.dialect.understand, headers=headers, sealer=self._sealer_of(request.model, context)
        )

        def understood() -> AcceptedRequest:
            ask = replace(understand(whole, compacting=compacting), request=own)
            accepted = AcceptedRequest(ask, context.id, context.tenant)
            # A small input is prepared for the store after the answer, when no client waits.
            if large and request.store:
                _ = accepted.items
            return accepted

        accepted = await run_in_thread_if(large, understood)
        if accepted.ask.sealer is not None:
            items = [*whole.items[: whole.earlier], *accepted.items]
            accepted.compacted = instructions(items)
            if compacting:
                accepted.ask = replace(accepted.ask, user_messages=user_messages(items))
            return accepted
        if not await exceeds_threshold(own, accepted.ask.conversation, self.turns, context):
            return accepted
        items = [*whole.items[: whole.earlier], *accepted.items]
        summary = await summarize(own.with_items(items), understand, self.turns, context)
        accepted.compacted = [*instructions(items), *summary.items, *user_messages(items)[-1:]]
        ask = understand(own.with_items(accepted.compacted))
        shape = replace(ask.shape, before=summary.items, spent=summary.usage or Usage())
        accepted.ask = replace(ask, request=own, notes=accepted.ask.notes, shape=shape)
        return accepted

    async def prompt(
        self, request: ResponsesRequest, headers: Mapping[str, str], context: RequestContext
    ) -> Conversation:
        """The conversation of a request for counting. Raises as `accept`."""
        whole = await expand(request, self.store, context.tenant)
        sealer = self._sealer_of(request.model, context)
        understand = partial(self.dialect.understand, whole, headers, sealer=sealer, counting=True)
        return (await run_in_thread_if(_is_large(whole), understand)).conversation


def _is_large(request: ResponsesRequest) -> bool:
    return is_large(*request.items, *(request.body.tools or ()))
