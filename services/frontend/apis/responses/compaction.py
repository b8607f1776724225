"""Compacts conversations that are over the threshold of `context_management`, before they are answered.

A separate turn writes a summary of the whole conversation. The request is then answered with the instructions, the
summary and the user's last message for a history. The `compaction` item is the first item of the answer; for the client
and in a chain it stands for everything before it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import msgspec
from msgspec import Raw, Struct

from schemas.errors import raised
from schemas.events import Usage
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.dialect import Responses, ResponsesAsk
from services.frontend.apis.responses.errors import convert
from services.frontend.apis.responses.live.runner import Runner
from services.frontend.apis.responses.request.body import MESSAGE, ResponsesRequest, item_kinds
from services.frontend.apis.responses.sealing import TextSealer
from services.frontend.apis.responses.store.record import json_size
from services.frontend.http.bodies import apart
from services.frontend.http.middleware import RequestContext
from services.frontend.pipeline.interfaces import TurnGateway
from services.runtime.seal import Sealer, TenantSealer

_INSTRUCTING = frozenset({"additional_tools", "configuration_update"})
_managed = msgspec.json.Decoder(list[wire.ManagedContext] | None)


SealerOf = Callable[[str, str | None], TextSealer]
"""Returns the sealer for a model, by the name that a client has for it, and a tenant."""


class ModelSealer:
    """Seals with the key that follows from a model's name. Raises NotFound, on first use, where it is not served."""

    def __init__(self, gateway: TurnGateway, model: str, tenant: str | None) -> None:
        self._gateway = gateway
        self._model = model
        self._tenant = tenant

    def seal(self, text: str) -> str:
        """See `TextSealer.seal`."""
        return self._sealer.seal(text)

    def open(self, blob: str) -> str | None:
        """See `TextSealer.open`."""
        return self._sealer.open(blob)

    @cached_property
    def _sealer(self) -> TenantSealer:
        return Sealer.load(None, self._gateway.resolve(self._model).name).of(self._tenant)


class CompactedRequest(Struct, frozen=True):
    """A request with its context compacted."""

    ask: ResponsesAsk
    context: list[Raw]
    """The items that stand for its history and its input."""


class Compactor:
    """Compacts contexts."""

    def __init__(self, dialect: Responses, runner: Runner, gateway: TurnGateway, sealer_of: SealerOf) -> None:
        self._dialect = dialect
        self._runner = runner
        self._gateway = gateway
        self._sealer_of = sealer_of

    async def compact_over_threshold(
        self, ask: ResponsesAsk, headers: Mapping[str, str], exchange: RequestContext, items: Sequence[Raw]
    ) -> CompactedRequest | None:
        """The request with its context compacted; None where it sets no threshold, or is below it.

        `items`: its history and its own input, with references replaced. Raises TurnwireError.
        """
        request = ask.request
        threshold = compact_threshold(request)
        if threshold is None or request.prefill or await self._gateway.count(ask.conversation) < threshold:
            return None
        item, spent = await self._summary(request.with_items([*items]), headers, exchange)
        context = [*instructions(items), item, *user_messages(items)[-1:]]
        sealer = self._sealer_of(request.model, exchange.tenant)
        fresh = self._dialect.understand(request.with_items(context), headers, sealer=sealer)
        fresh = msgspec.structs.replace(fresh, request=request, notes=ask.notes, before=[item], spent=spent)
        return CompactedRequest(fresh, context)

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
        await self._runner.run(ask, renderer, own, record, emit=lambda _data: None, on_end=lambda: None)
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
