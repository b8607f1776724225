"""Accepts requests: fetches the stored responses and items that a request names, and converts it to a conversation.

A conversation over the threshold of `context_management` is compacted before it is answered: a separate turn writes a
summary of the whole conversation. The request is then answered with the instructions, the summary and the user's last
message for a history. The `compaction` item is the first item of the answer; for the client and in a chain it stands
for everything before it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from schemas.errors import raised
from schemas.events import Usage
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.answer.document import ResponseState, Status
from services.frontend.apis.responses.answer.stream import ResponsesStream
from services.frontend.apis.responses.dialect import Responses, ResponsesAsk
from services.frontend.apis.responses.errors import convert
from services.frontend.apis.responses.live.runner import Runner
from services.frontend.apis.responses.request.body import MESSAGE, ResponsesRequest, item_kinds
from services.frontend.apis.responses.sealing import TextSealer
from services.frontend.apis.responses.store.chain import chain_items
from services.frontend.apis.responses.store.input_items import stored_items
from services.frontend.apis.responses.store.memory import MemoryStore
from services.frontend.apis.responses.store.record import StoredResponse, json_size
from services.frontend.http.bodies import PARSE_IN_THREAD_FROM_BYTES, run_in_thread_if_large
from services.frontend.http.middleware import RequestContext

SealerOf = Callable[[str, RequestContext], TextSealer]
"""Returns the sealer for a model, by the name that a client has for it, and its tenant."""

_INSTRUCTING = frozenset({"additional_tools", "configuration_update"})


@dataclass
class AcceptedRequest:
    """A converted request, with what is needed to store its response."""

    ask: ResponsesAsk
    turn: str
    tenant: str | None
    context: list[Raw] | None = None
    """Set where the context is compacted: the items that stand for everything before the turn's own output."""

    @cached_property
    def items(self) -> list[Raw]:
        """The items of its own input, each with an id."""
        return stored_items(self.ask.request, self.turn)

    def record(self, stream: ResponsesStream, *, status: Status | None = None, owner: str = "") -> StoredResponse:
        """The response as it stands. `status` overrides the stream's; `owner`: the process in which it still runs."""
        body, output = self.ask.request.body, list(stream.state.items)
        document = stream.state.document(status)
        return StoredResponse(
            id=document["id"],
            created=document["created_at"],
            response=Raw(msgspec.json.encode(document)),
            status=document["status"],
            tenant=self.tenant,
            previous=body.previous_response_id,
            input=self.items,
            output=output,
            events=b"" if owner else stream.recording(),
            background=bool(body.background),
            context=None if self.context is None else [*self.context, *output[len(self.ask.shape.before) :]],
            owner=owner,
        )


class Intake:
    """Accepts requests."""

    def __init__(self, dialect: Responses, store: MemoryStore, sealer_of: SealerOf, runner: Runner) -> None:
        self.dialect = dialect
        self.store = store
        self.runner = runner
        self._sealer_of = sealer_of

    async def accept(
        self,
        request: ResponsesRequest,
        headers: Mapping[str, str],
        exchange: RequestContext,
        *,
        store: MemoryStore | None = None,
        counting: bool = False,
        compacting: bool = False,
    ) -> AcceptedRequest:
        """Converts a request. Raises Invalid, NotFound for a reference to an item that is not stored, and TurnwireError
        where a store does not answer. `store`: where to look instead of the deployment's."""
        store, tenant = self.store if store is None else store, exchange.tenant
        previous = request.body.previous_response_id
        history = [] if previous is None else await chain_items(store, previous, tenant)
        if named := set(request.references):
            stored = {id: item for id in named if (item := await store.item(id, tenant)) is not None}
            request = request.with_references(stored)
        size = request.size + json_size(*history, *(request.body.tools or ()))
        # A small input is prepared for the store after the answer, when no client waits.
        early = size >= PARSE_IN_THREAD_FROM_BYTES and request.store and not counting
        sealer = self._sealer_of(request.model, exchange)
        understand = partial(self.dialect.understand, headers=headers, sealer=sealer)

        def understood() -> AcceptedRequest:
            ask = understand(request, history=history, counting=counting, compacting=compacting)
            accepted = AcceptedRequest(ask, exchange.id, tenant)
            if early:
                _ = accepted.items
            return accepted

        accepted = await run_in_thread_if_large(size, understood)
        if counting:
            return accepted
        if accepted.ask.sealer is not None:
            items = [*history, *accepted.items]
            accepted.context = instructions(items)
            if compacting:
                accepted.ask = replace(accepted.ask, user_messages=user_messages(items))
            return accepted
        threshold, count = compact_threshold(request), self.runner.server.admission.count
        if threshold is None or request.prefill or await count(accepted.ask.conversation, exchange.caller) < threshold:
            return accepted
        items = [*history, *accepted.items]
        summary = await self._summary(request.with_items(items), headers, exchange, sealer)
        accepted.context = [*instructions(items), *summary.items, *user_messages(items)[-1:]]
        ask = understand(request.with_items(accepted.context))
        shape = replace(ask.shape, before=summary.items, spent=summary.usage or Usage())
        accepted.ask = replace(ask, request=request, notes=accepted.ask.notes, shape=shape)
        return accepted

    async def _summary(
        self, request: ResponsesRequest, headers: Mapping[str, str], exchange: RequestContext, sealer: TextSealer
    ) -> ResponseState:
        """The compaction of a conversation. Its tokens are charged to the caller."""
        understood = partial(self.dialect.understand, request, headers, sealer=sealer, compacting=True)
        ask = await run_in_thread_if_large(json_size(*request.items), understood)
        server = self.runner.server
        stream = ask.renderer(self.runner.reply(exchange, request.model))
        shorten = self.runner.shorten(ask, exchange)
        stream.events(await server.read(ask.conversation, exchange, self.dialect.name, shorten))
        if stream.state.failure is not None:
            raise raised(stream.state.failure)
        return stream.state


def compact_threshold(request: ResponsesRequest) -> int | None:
    """The prompt size in tokens from which the context is compacted. Raises Invalid."""
    managed = convert(list[wire.ManagedContext] | None, request.body.context_management, "context_management")
    return next((entry.compact_threshold for entry in managed or () if entry.type == "compaction"), None)


def instructions(items: Sequence[Raw]) -> list[Raw]:
    """The items that instruct the model: system and developer messages, tools and settings."""
    kinds = zip(items, item_kinds(items, "history"), strict=True)
    return [item for item, kind in kinds if kind.type in _INSTRUCTING or kind.role in ("system", "developer")]


def user_messages(items: Sequence[Raw]) -> list[Raw]:
    """The user's messages among stored items."""
    kinds = zip(items, item_kinds(items, "history"), strict=True)
    return [item for item, kind in kinds if kind.type == MESSAGE and kind.role == "user"]
