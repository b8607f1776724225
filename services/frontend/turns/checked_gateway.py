"""Applies the caller's rights and the limits of conversations to every call of the gateway, and reads documents.

It stands between all routes and the pipeline, so that no route can forget it. The caller is that of the request whose
task is running, or whose task started the one that is.
"""

from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from schemas.control import ModelCard
from schemas.conversation import Conversation, Media
from schemas.errors import TooLarge
from schemas.frames import TextReply
from services.frontend.http.auth import CALLER
from services.frontend.turns.conversation_limits import ConversationCheck, ConversationLimits
from services.frontend.turns.interfaces import OpenTurn, TurnGateway, TurnSink
from services.frontend.turns.media.notice import MediaKind, NoticeSink, notice, wants_notice, without_notices
from services.frontend.turns.media.parts import media_of
from services.frontend.turns.media.pdf_document import PdfDocument
from services.frontend.turns.media.pdf_reader import PdfReader

T = TypeVar("T")


class CheckedGateway:
    """A `TurnGateway` in front of another one. Outside of a request only the limits of conversations apply."""

    def __init__(self, gateway: TurnGateway, limits: ConversationLimits, pdfs: PdfReader, *, notices: bool) -> None:
        """`notices`: answers end with a note about media that the model does not receive, once in a session."""
        self._gateway = gateway
        self._check = ConversationCheck(limits)
        self._pdfs = pdfs
        self._notices = notices

    async def open(self, conversation: Conversation, sink: TurnSink, *, turn_id: str) -> OpenTurn:
        """See `TurnGateway.open`. Raises Forbidden, and Invalid for a conversation over a limit."""
        media = self._admit(conversation)
        caller = CALLER.get()
        if caller is not None and caller.priority is not None:
            conversation = replace(conversation, hints=replace(conversation.hints, priority=caller.priority))
        conversation, known = await self._read(conversation, media)
        if media and self._notices and wants_notice(conversation):
            new = {one.kind for one in media_of(conversation)} - known
            sink = NoticeSink(sink, notice(new)) if new else sink
        return await _worded(self._gateway.open(conversation, sink, turn_id=turn_id))

    async def count(self, conversation: Conversation) -> int:
        """See `TurnGateway.count`. Raises as `open`, and RateLimited."""
        media = self._admit(conversation)
        _charge()
        conversation, _ = await self._read(conversation, media)
        return await _worded(self._gateway.count(conversation))

    async def tokenize(
        self, model: str, text: str | None, conversation: Conversation | None, add_special_tokens: bool
    ) -> TextReply:
        """See `TurnGateway.tokenize`. Raises as `count`."""
        self.resolve(model)
        media = [] if conversation is None else self._check(conversation)
        _charge()
        if conversation is not None:
            conversation, _ = await self._read(conversation, media)
        return await _worded(self._gateway.tokenize(model, text, conversation, add_special_tokens))

    async def detokenize(self, model: str, token_ids: list[int]) -> TextReply:
        """See `TurnGateway.detokenize`. Raises as `count`."""
        self.resolve(model)
        _charge()
        return await _worded(self._gateway.detokenize(model, token_ids))

    def models(self) -> list[ModelCard]:
        """Returns the served models that the caller may use."""
        caller = CALLER.get()
        return [card for card in self._gateway.models() if caller is None or caller.sees(card)]

    def resolve(self, model: str, conversation: Conversation | None = None) -> ModelCard:
        """See `TurnGateway.resolve`. Raises NotFound, and Forbidden."""
        card = self._gateway.resolve(model, conversation)
        if (caller := CALLER.get()) is not None:
            caller.permit(card, model)
        return card

    def readiness(self) -> dict[str, Any]:
        """See `TurnGateway.readiness`."""
        return self._gateway.readiness()

    def live(self) -> bool:
        """See `TurnGateway.live`."""
        return self._gateway.live()

    def _admit(self, conversation: Conversation) -> list[Media]:
        self.resolve(conversation.model)
        return self._check(conversation)

    async def _read(
        self, conversation: Conversation, media: Sequence[Media]
    ) -> tuple[Conversation, frozenset[MediaKind]]:
        """The conversation with the text of its PDFs and without notes of this server, and what those were about."""
        if any(isinstance(one, PdfDocument) for one in media):
            conversation = await self._pdfs.read(conversation)
        return without_notices(conversation)


async def _worded(call: Awaitable[T]) -> T:
    """Returns what `call` does. A refusal of the bus becomes one of the request, which is all that the client knows."""
    try:
        return await call
    except TooLarge as error:
        if (details := error.info.details) is None:
            raise
        size, limit = details["size_bytes"], details["limit_bytes"]
        raise TooLarge(
            f"The request has {size} bytes without the data of images and documents; the limit is {limit}."
        ) from error


def _charge() -> None:
    if (caller := CALLER.get()) is not None:
        caller.limiter.count()
