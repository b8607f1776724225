"""`context_management`: a conversation that has grown over the client's threshold is compacted before it is answered.

The summary is a turn of its own, over the whole conversation; then the question is answered with instructions, summary
and the user's last message for a history. The `compaction` item is the first of the answer, and stands, for the client
and in a chain, for all that came before it.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw, Struct

from schemas.errors import raised
from schemas.events import Usage
from services.frontend.dialects.responses.ask import ResponsesAsk, compact_threshold
from services.frontend.dialects.responses.dialect import Responses
from services.frontend.dialects.responses.request import ResponsesRequest, kinds
from services.frontend.exchange import Exchange
from services.frontend.limits import apart
from services.frontend.responses.record import bytes_of
from services.frontend.responses.runner import Runner
from services.frontend.responses.vaults import Vaults
from services.frontend.turns import TurnGateway

_INSTRUCTING = frozenset({"additional_tools", "configuration_update"})


class Compacted(Struct, frozen=True):
    """A request after its context was compacted."""

    ask: ResponsesAsk
    standing: list[Raw]
    """The items that stand for its history and its input."""


class Compactor:
    """Compacts contexts."""

    def __init__(self, dialect: Responses, runner: Runner, gateway: TurnGateway, vaults: Vaults) -> None:
        self._dialect = dialect
        self._runner = runner
        self._gateway = gateway
        self._vaults = vaults

    async def compacted(
        self,
        ask: ResponsesAsk,
        headers: Mapping[str, str],
        exchange: Exchange,
        *,
        history: Sequence[Raw],
        own: Sequence[Raw],
    ) -> Compacted | None:
        """The request with its context compacted; None where it asks for no such thing, or is small enough.

        `history` and `own`: the items before the request's own, and these, references replaced. Raises TurnwireError.
        """
        request = ask.request
        threshold = compact_threshold(request)
        if threshold is None or request.prefill or await self._gateway.count(ask.conversation) < threshold:
            return None
        items = [*history, *own]
        item, spent = await self._summary(_with_items(request, items), headers, exchange)
        standing = [*instructions(items), item, *_last_question(items)]
        vault = self._vaults.of(request.model)
        fresh = self._dialect.understand(_with_items(request, standing), headers, vault=vault)
        return Compacted(
            msgspec.structs.replace(fresh, request=request, notes=ask.notes, before=[item], spent=spent), standing
        )

    async def _summary(
        self, request: ResponsesRequest, headers: Mapping[str, str], exchange: Exchange
    ) -> tuple[Raw, Usage]:
        vault = self._vaults.of(request.model)
        size = sum(len(bytes_of(raw)) for raw in request.items)
        ask = await apart(size, lambda: self._dialect.understand(request, headers, vault=vault, compacting=True))
        renderer = ask.renderer(self._runner.reply(exchange, request.model))
        record = self._runner.record()
        own = self._runner.exchange(exchange)
        await self._runner.run(ask, renderer, own, record, emit=lambda _data: None, on_end=lambda: None)
        if exchange.caller is not None:
            exchange.caller.spend(record.tokens)
        if renderer.failure is not None:
            raise raised(renderer.failure)
        (item,) = renderer.output_items()
        return item, record.usage or Usage()


def instructions(items: Sequence[Raw]) -> list[Raw]:
    """The items that say how to answer, and are no part of what was said."""
    return [
        item
        for item, kind in zip(items, kinds(items, "history"), strict=True)
        if kind.type in _INSTRUCTING or kind.role in ("system", "developer")
    ]


def _last_question(items: Sequence[Raw]) -> list[Raw]:
    asked = [item for item, kind in zip(items, kinds(items, "history"), strict=True) if kind.role == "user"]
    return asked[-1:]


def _with_items(request: ResponsesRequest, items: list[Raw]) -> ResponsesRequest:
    return msgspec.structs.replace(request, items=items, kinds=kinds(items, "input"))
