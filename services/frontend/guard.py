"""The gateway as one caller may use it: models that his key allows, conversations of a size that the server takes.

It stands between every route and the pipeline, so that no route can forget it. The caller is the one of the request
whose task, or a task of which, is running.
"""

from contextvars import ContextVar
from typing import Any

from msgspec.structs import replace

from schemas.control import ModelCard
from schemas.conversation import Conversation
from schemas.frames import TextReply
from services.frontend.auth import Caller
from services.frontend.shape_limits import ShapeCheck, ShapeLimits
from services.frontend.turns import OpenTurn, TurnGateway, TurnSink

CALLER: ContextVar[Caller] = ContextVar("caller")
"""Set by the middleware, for the task of each request."""


class GuardedGateway:
    """A `TurnGateway` before another one. Outside of a request it lets everything through."""

    def __init__(self, gateway: TurnGateway, limits: ShapeLimits) -> None:
        self._gateway = gateway
        self._check = ShapeCheck(limits)

    async def open(
        self, conversation: Conversation, sink: TurnSink, *, turn_id: str, traceparent: str | None = None
    ) -> OpenTurn:
        """See `TurnGateway.open`. Raises Forbidden, and Invalid for a conversation over a limit."""
        self._admit(conversation)
        caller = CALLER.get(None)
        if caller is not None and caller.priority is not None:
            conversation = replace(conversation, hints=replace(conversation.hints, priority=caller.priority))
        return await self._gateway.open(conversation, sink, turn_id=turn_id, traceparent=traceparent)

    async def count(self, conversation: Conversation) -> int:
        """See `TurnGateway.count`. Raises as `open`, and RateLimited."""
        self._admit(conversation)
        self._counted()
        return await self._gateway.count(conversation)

    async def tokenize(
        self, model: str, text: str | None, conversation: Conversation | None, add_special_tokens: bool
    ) -> TextReply:
        """See `TurnGateway.tokenize`. Raises as `count`."""
        self.resolve(model)
        if conversation is not None:
            self._check(conversation)
        self._counted()
        return await self._gateway.tokenize(model, text, conversation, add_special_tokens)

    async def detokenize(self, model: str, token_ids: list[int]) -> TextReply:
        """See `TurnGateway.detokenize`. Raises as `count`."""
        self.resolve(model)
        self._counted()
        return await self._gateway.detokenize(model, token_ids)

    def models(self) -> list[ModelCard]:
        """Every model that is served at the moment and that the caller may use."""
        caller = CALLER.get(None)
        return [card for card in self._gateway.models() if caller is None or caller.sees(card)]

    def resolve(self, model: str) -> ModelCard:
        """The model with this name or alias. Raises NotFound, and Forbidden where the caller may not use it."""
        card = self._gateway.resolve(model)
        caller = CALLER.get(None)
        if caller is not None:
            caller.permit(card, model)
        return card

    def readiness(self) -> dict[str, Any]:
        """See `TurnGateway.readiness`."""
        return self._gateway.readiness()

    def live(self) -> bool:
        """See `TurnGateway.live`."""
        return self._gateway.live()

    def _admit(self, conversation: Conversation) -> None:
        self.resolve(conversation.model)
        self._check(conversation)

    def _counted(self) -> None:
        caller = CALLER.get(None)
        if caller is not None:
            caller.count()
