"""Applies the caller's rights and the limits of conversations to every call of the gateway.

It stands between all routes and the pipeline, so that no route can forget it. The caller is that of the request whose
task is running, or whose task started the one that is.
"""

from contextvars import ContextVar
from typing import Any

from msgspec.structs import replace

from schemas.control import ModelCard
from schemas.conversation import Conversation
from schemas.frames import TextReply
from services.frontend.http.auth import Caller
from services.frontend.pipeline.conversation_limits import ConversationCheck, ConversationLimits
from services.frontend.pipeline.interfaces import OpenTurn, TurnGateway, TurnSink

CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""Set by the middleware, for the task of each request."""


class CheckedGateway:
    """A `TurnGateway` in front of another one. Outside of a request only the limits of conversations apply."""

    def __init__(self, gateway: TurnGateway, limits: ConversationLimits) -> None:
        self._gateway = gateway
        self._check = ConversationCheck(limits)

    async def open(self, conversation: Conversation, sink: TurnSink, *, turn_id: str) -> OpenTurn:
        """See `TurnGateway.open`. Raises Forbidden, and Invalid for a conversation over a limit."""
        self._admit(conversation)
        caller = CALLER.get()
        if caller is not None and caller.priority is not None:
            conversation = replace(conversation, hints=replace(conversation.hints, priority=caller.priority))
        return await self._gateway.open(conversation, sink, turn_id=turn_id)

    async def count(self, conversation: Conversation) -> int:
        """See `TurnGateway.count`. Raises as `open`, and RateLimited."""
        self._admit(conversation)
        _charge()
        return await self._gateway.count(conversation)

    async def tokenize(
        self, model: str, text: str | None, conversation: Conversation | None, add_special_tokens: bool
    ) -> TextReply:
        """See `TurnGateway.tokenize`. Raises as `count`."""
        self.resolve(model)
        if conversation is not None:
            self._check(conversation)
        _charge()
        return await self._gateway.tokenize(model, text, conversation, add_special_tokens)

    async def detokenize(self, model: str, token_ids: list[int]) -> TextReply:
        """See `TurnGateway.detokenize`. Raises as `count`."""
        self.resolve(model)
        _charge()
        return await self._gateway.detokenize(model, token_ids)

    def models(self) -> list[ModelCard]:
        """Returns the served models that the caller may use."""
        caller = CALLER.get()
        return [card for card in self._gateway.models() if caller is None or caller.sees(card)]

    def resolve(self, model: str) -> ModelCard:
        """Returns the model with this name or alias. Raises NotFound, and Forbidden."""
        card = self._gateway.resolve(model)
        if (caller := CALLER.get()) is not None:
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


def _charge() -> None:
    if (caller := CALLER.get()) is not None:
        caller.limiter.count()
