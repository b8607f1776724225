"""Accepts requests: fetches the stored responses and items that a request names, and converts it to a conversation.

A conversation over the threshold of `context_management` is compacted before it is answered: a separate turn writes a
summary of the whole conversation. The request is then answered with the instructions, the summary and the user's last
message for a history. The `compaction` item is the first item of the answer; for the client and in a chain it stands
for everything before it.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Raw, Struct

from schemas.errors import raised
from schemas.events import Usage
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.answer.document import Status
from services.frontend.apis.responses.answer.stream import ResponsesStream
from services.frontend.apis.responses.dialect import Responses, ResponsesAsk
from services.frontend.apis.responses.errors import convert
from services.frontend.apis.responses.live.runner import Emitter, Runner
from services.frontend.apis.responses.request.body import MESSAGE, ResponsesRequest, item_kinds
from services.frontend.apis.responses.sealing import TextSealer
from services.frontend.apis.responses.store.chain import Histories, items_of
from services.frontend.apis.responses.store.input_items import stored_items
from services.frontend.apis.responses.store.record import StoredResponse, item_id, json_size
from services.frontend.http.bodies import UNDERSTAND_APART_BYTES, apart
from services.frontend.http.middleware import RequestContext
from services.frontend.pipeline.interfaces import TurnGateway

SealerOf = Callable[[str, str | None], TextSealer]
"""Returns the sealer for a model, by the name that a client has for it, and a tenant."""

_INSTRUCTING = frozenset({"additional_tools", "configuration_update"})
_managed = msgspec.json.Decoder(list[wire.ManagedContext] | None)


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
            previous=request.body.previous_response_id,
            input=self.items(),
            output=output,
            events=b"" if owner else stream.recording(),
            background=bool(request.body.background),
            context=None if self.context is None else [*self.context, *output[len(self.ask.shape.before) :]],
            owner=owner,
        )


class Intake:
    """Accepts requests."""

    def __init__(
        self, dialect: Responses, histories: Histories, sealer_of: SealerOf, runner: Runner, gateway: TurnGateway
    ) -> None:
        self.histories = histories
        self._dialect = dialect
        self._sealer_of = sealer_of
        self._runner = runner
        self._gateway = gateway

    async def accept(
        self,
        request: ResponsesRequest,
        headers: Mapping[str, str],
        exchange: RequestContext,
        *,
        histories: Histories | None = None,
        counting: bool = False,
        compacting: bool = False,
        conversation: list[Raw] | None = None,
    ) -> AcceptedRequest:
        """Converts a request. Raises Invalid, NotFound for a reference to an item that is not stored, and TurnwireError
        where a store does not answer. `histories`: where to look instead of the deployment's store.
        `conversation`: the items of the one that the request names."""
        tenant = exchange.tenant
        previous = request.body.previous_response_id
        histories = histories or self.histories
        history = items_of(await histories.chain(previous, tenant)) if previous is not None else conversation or []
        named = set(request.references)
        references = {id: item for item in conversation or () if (id := item_id(item)) in named}
        references |= await histories.items(named - references.keys(), tenant)
        size = request.size + json_size(*history, *(request.body.tools or ()))
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
            return msgspec.structs.replace(accepted, context=instructions([*history, *accepted.items()]))
        threshold = compact_threshold(request)
        if threshold is None or request.prefill or await self._gateway.count(accepted.ask.conversation) < threshold:
            return accepted
        items = [*history, *accepted.items()]
        item, spent = await self._summary(request.with_items(items), headers, exchange)
        context = [*instructions(items), item, *user_messages(items)[-1:]]
        sealer = self._sealer_of(request.model, exchange.tenant)
        ask = self._dialect.understand(request.with_items(context), headers, sealer=sealer)
        shape = msgspec.structs.replace(ask.shape, before=[item], spent=spent)
        ask = msgspec.structs.replace(ask, request=request, notes=accepted.ask.notes, shape=shape)
        return msgspec.structs.replace(accepted, ask=ask, context=context)

    async def _summary(
        self, request: ResponsesRequest, headers: Mapping[str, str], exchange: RequestContext
    ) -> tuple[Raw, Usage]:
        def understood() -> ResponsesAsk:
            sealer = self._sealer_of(request.model, exchange.tenant)
            return self._dialect.understand(request, headers, sealer=sealer, compacting=True)

        ask = await apart(json_size(*request.items), understood)
        renderer = ask.renderer(self._runner.reply(exchange, request.model))
        record = self._runner.record()
        own = self._runner.exchange(exchange)
        await self._runner.run(ask, renderer, own, record, Emitter(lambda _data: None))
        if exchange.caller is not None:
            exchange.caller.spend(record.tokens)
        if renderer.state.failure is not None:
            raise raised(renderer.state.failure)
        (item,) = renderer.state.items
        return item, record.usage or Usage()


def compact_threshold(request: ResponsesRequest) -> int | None:
    """The prompt size in tokens from which the context is compacted. Raises Invalid."""
    managed = convert(_managed, request.body.context_management, "context_management") or []
    return next((entry.compact_threshold for entry in managed if entry.type == "compaction"), None)


def instructions(items: Sequence[Raw]) -> list[Raw]:
    """The items that instruct the model: system and developer messages, tools and settings."""
    return [
        item
        for item, kind in zip(items, item_kinds(items, "history"), strict=True)
        if kind.type in _INSTRUCTING or kind.role in ("system", "developer")
    ]


def user_messages(items: Sequence[Raw]) -> list[Raw]:
    """The user's messages among stored items."""
    kinds = zip(items, item_kinds(items, "history"), strict=True)
    return [item for item, kind in kinds if kind.type == MESSAGE and kind.role == "user"]
