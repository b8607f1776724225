"""Accepts requests: fetches the stored responses and items that a request names, and converts it to a conversation."""

from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct

from services.frontend.apis.responses.answer.document import Status
from services.frontend.apis.responses.answer.stream import ResponsesStream
from services.frontend.apis.responses.compaction import Compactor, SealerOf, instructions
from services.frontend.apis.responses.dialect import Responses, ResponsesAsk
from services.frontend.apis.responses.request.body import ResponsesRequest, given
from services.frontend.apis.responses.store.chain import Histories, items_of
from services.frontend.apis.responses.store.input_items import stored_items
from services.frontend.apis.responses.store.record import StoredResponse, json_size
from services.frontend.http.bodies import UNDERSTAND_APART_BYTES, apart
from services.frontend.http.middleware import RequestContext


class AcceptedRequest(Struct, frozen=True):
    """A converted request, with what is needed to store its response."""

    ask: ResponsesAsk
    references: dict[str, Raw]
    """The stored items that it names, by their ids."""
    history: list[Raw]
    """The items of the chain that it continues."""
    turn: str
    tenant: str | None
    context: list[Raw] | None = None
    """Set where the context is compacted: the items that stand for everything before the turn's own output."""
    stored: list[Raw] | None = None
    """`items()`, where they are made already."""

    def items(self) -> list[Raw]:
        """The items of its own input, each with an id, and with references replaced by what they name."""
        return stored_items(self.ask.request, self.turn, self.references.get) if self.stored is None else self.stored

    def without_input(self) -> "AcceptedRequest":
        """What is needed to answer a request that is not stored."""
        ask = msgspec.structs.replace(self.ask, request=self.ask.request.without_input())
        return msgspec.structs.replace(self, ask=ask, references={}, history=[])

    def record(self, stream: ResponsesStream, *, status: Status | None = None, owner: str = "") -> StoredResponse:
        """The response as it stands. `status` overrides the stream's; `owner`: the process in which it still runs."""
        request, output = self.ask.request, list(stream.state.items)
        document = stream.state.document(status)
        return StoredResponse(
            id=document["id"],
            created=document["created_at"],
            response=Raw(msgspec.json.encode(document)),
            status=document["status"],
            tenant=self.tenant,
            previous=request.previous_response_id,
            input=self.items(),
            output=output,
            events=b"" if owner else stream.recording(),
            background=request.background,
            context=None if self.context is None else [*self.context, *output[len(self.ask.before) :]],
            owner=owner,
        )


class Intake:
    """Accepts requests."""

    def __init__(self, dialect: Responses, histories: Histories, sealer_of: SealerOf, compactor: Compactor) -> None:
        self.histories = histories
        self._dialect = dialect
        self._sealer_of = sealer_of
        self._compactor = compactor

    async def accept(
        self,
        request: ResponsesRequest,
        headers: Mapping[str, str],
        exchange: RequestContext,
        *,
        histories: Histories | None = None,
        counting: bool = False,
        compacting: bool = False,
    ) -> AcceptedRequest:
        """Converts a request. Raises Invalid, NotFound for a reference to an item that is not stored, and TurnwireError
        where a store does not answer. `histories`: where to look instead of the deployment's store."""
        tenant = exchange.tenant
        previous = request.previous_response_id
        histories = histories or self.histories
        history = items_of(await histories.chain(previous, tenant)) if previous is not None else []
        references = await histories.items(request.references, tenant) if request.references else {}
        size = json_size(*history, *request.items, *(request.body.tools or ()))
        # A small input is prepared for the store after the answer, when no client waits.
        early = size >= UNDERSTAND_APART_BYTES and request.store and not counting

        def understood() -> AcceptedRequest:
            ask = self._dialect.understand(
                request,
                headers,
                history=history,
                resolve=references.get,
                sealer=self._sealer_of(request.model, tenant),
                counting=counting,
                compacting=compacting,
            )
            stored = stored_items(request, exchange.id, references.get) if early else None
            return AcceptedRequest(ask, references, history, exchange.id, tenant, stored=stored)

        accepted = await apart(size, understood)
        if counting:
            return accepted
        if accepted.ask.sealer is not None:
            context = instructions([*history, *accepted.items()])
            return msgspec.structs.replace(accepted, context=context)
        if given(request.body.context_management):
            items = [*history, *accepted.items()]
            compacted = await self._compactor.compact_over_threshold(accepted.ask, headers, exchange, items)
            if compacted is not None:
                return msgspec.structs.replace(accepted, ask=compacted.ask, context=compacted.context)
        return accepted
