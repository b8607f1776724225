"""From a request to a conversation: what the dialect cannot know by itself is fetched here and handed to it."""

from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct

from services.frontend.dialects.responses.ask import ResponsesAsk
from services.frontend.dialects.responses.dialect import Responses
from services.frontend.dialects.responses.document import Status
from services.frontend.dialects.responses.listing import stored_items
from services.frontend.dialects.responses.request import ResponsesRequest, given
from services.frontend.exchange import Exchange
from services.frontend.limits import UNDERSTAND_APART_BYTES, apart
from services.frontend.responses.history import Histories, items_of
from services.frontend.responses.managed import Compactor, instructions
from services.frontend.responses.record import StoredResponse, bytes_of
from services.frontend.responses.recording import Answer
from services.frontend.responses.vaults import Vaults


class Asked(Struct, frozen=True):
    """An understood request, with what has to be kept of it."""

    ask: ResponsesAsk
    found: dict[str, Raw]
    """The stored items that it refers to."""
    history: list[Raw]
    """The items of the chain that it goes on from."""
    turn: str
    tenant: str | None
    standing: list[Raw] | None = None
    """Set where the context is compacted: the items that stand for all before the turn's own output."""
    stored: list[Raw] | None = None
    """Its `items`, where they are made already."""

    def items(self) -> list[Raw]:
        """The items of its own input, each with an id; what it refers to stands there itself."""
        return stored_items(self.ask.request, self.turn, self.found.get) if self.stored is None else self.stored

    def record(
        self,
        answer: Answer,
        *,
        created: float,
        events: bytes = b"",
        status: Status | None = None,
        owner: str = "",
    ) -> StoredResponse:
        """The response as it stands, to be kept. `events`: its stream, packed, if that may be replayed; `owner`: where
        it still runs; `status` overrides the answer's."""
        return self.of_document(
            answer.response(status), answer.output_items(), created=created, events=events, owner=owner
        )

    def of_document(
        self,
        document: dict[str, object],
        output: list[Raw],
        *,
        created: float,
        events: bytes = b"",
        owner: str = "",
    ) -> StoredResponse:
        """The same from a Response object."""
        request = self.ask.request
        context: list[Raw] | None = None
        if self.standing is not None:
            context = [*self.standing, *output[len(self.ask.before) :]]
        return StoredResponse(
            id=str(document["id"]),
            created=created,
            response=Raw(msgspec.json.encode(document)),
            status=str(document["status"]),
            tenant=self.tenant,
            previous=request.previous_response_id,
            input=self.items(),
            output=output,
            events=events,
            background=request.background,
            context=context,
            owner=owner,
        )


class Intake:
    """Understands requests."""

    def __init__(self, dialect: Responses, histories: Histories, vaults: Vaults, compactor: Compactor) -> None:
        self._dialect = dialect
        self._compactor = compactor
        self.histories = histories
        self._vaults = vaults

    async def asked(
        self,
        request: ResponsesRequest,
        headers: Mapping[str, str],
        exchange: Exchange,
        *,
        counting: bool = False,
        compacting: bool = False,
    ) -> Asked:
        """The conversation that a request asks for. Raises Invalid, NotFound for a reference to nothing, and
        TurnwireError where a store does not answer."""
        tenant = exchange.tenant
        previous = request.previous_response_id
        history = items_of(await self.histories.chain(previous, tenant)) if previous is not None else []
        found = await self.histories.items(request.references, tenant) if request.references else {}
        vault = self._vaults.of(request.model)
        size = sum(len(bytes_of(raw)) for raw in (*history, *request.items, *(request.body.tools or ())))
        # Where it is little, what is kept of the input is made at the end, when nobody waits for it.
        early = size >= UNDERSTAND_APART_BYTES and request.store and not counting

        def understood() -> Asked:
            ask = self._dialect.understand(
                request,
                headers,
                history=history,
                resolve=found.get,
                vault=vault,
                counting=counting,
                compacting=compacting,
            )
            stored = stored_items(request, exchange.id, found.get) if early else None
            return Asked(ask, found, history, exchange.id, tenant, stored=stored)

        asked = await apart(size, understood)
        ask = asked.ask
        if counting:
            return asked
        if ask.compacting:
            return msgspec.structs.replace(asked, standing=instructions([*history, *asked.items()]))
        if given(request.body.context_management):
            own = asked.items()
            smaller = await self._compactor.compacted(ask, headers, exchange, history=history, own=own)
            if smaller is not None:
                return msgspec.structs.replace(asked, ask=smaller.ask, standing=smaller.standing)
        return asked
