"""Admits requests to the models: checks the caller's rights and the limits of conversations, and reads documents.

The gateway takes only what is `Admitted`, and only this module makes that, so no route can forget a check. The model is
looked up once for each request.
"""

from collections.abc import Awaitable, Sequence
from typing import TypeVar, final

from msgspec.structs import replace

from schemas.control import ModelCard
from schemas.conversation import Conversation, Media
from schemas.errors import Invalid, NotFound, TooLarge
from schemas.frames import TextReply
from services.frontend.http.auth import Caller
from services.frontend.turns.conversation_limits import ConversationLimits
from services.frontend.turns.hosted.loop import HostedTools
from services.frontend.turns.interfaces import OpenTurn, TurnGateway, TurnSink
from services.frontend.turns.media.notice import NoticeSink, media_of, notice, wants_notice, without_notices
from services.frontend.turns.media.pdf_document import PdfDocument
from services.frontend.turns.media.pdf_reader import PdfReader

_ADMISSION = object()
T = TypeVar("T")


@final
class Admitted:
    """A request that may reach the gateway. `Admission` makes it; nothing else can."""

    __slots__ = ("card", "continues", "conversation", "notice")

    def __init__(self, maker: object, card: ModelCard, conversation: Conversation, notice: str = "") -> None:
        if maker is not _ADMISSION:
            raise TypeError("only Admission admits requests")
        self.card = card
        self.conversation = conversation
        """As the pipeline gets it: with the served model's name, the caller's tenant, and the text of documents. Empty
        for a request about text alone."""
        self.notice = notice
        """The note that the answer ends with; "" for none."""
        self.continues = False
        """The answer has begun: its next turn is accepted while the process drains."""

    def then(self, conversation: Conversation, *, continues: bool = False) -> "Admitted":
        """Returns the same request with a conversation that this server made of the admitted one."""
        admitted = Admitted(_ADMISSION, self.card, conversation, self.notice)
        admitted.continues = continues
        return admitted


class Admission:
    """Admits requests, and passes them to the gateway. A caller of None has every right and no limits of its own."""

    def __init__(
        self,
        gateway: TurnGateway,
        limits: ConversationLimits,
        pdfs: PdfReader,
        *,
        notices: bool,
        hosted: HostedTools | None = None,
    ) -> None:
        """`notices`: answers end with a note about media that the model does not receive, once in a session."""
        self._gateway = gateway
        self._limits = limits
        self._pdfs = pdfs
        self._notices = notices
        self._hosted = hosted

    def models(self, caller: Caller | None) -> list[ModelCard]:
        """Returns the served models that the caller may use."""
        return [card for card in self._gateway.models() if caller is None or caller.sees(card)]

    def resolve(self, model: str, caller: Caller | None, conversation: Conversation | None = None) -> ModelCard:
        """Returns a model as `TurnGateway.resolve`. Raises NotFound, Forbidden, and Invalid for an empty name."""
        try:
            card = self._gateway.resolve(model, conversation)
        except NotFound:
            if model:
                raise
            raise Invalid("model: Field required", param="model") from None
        if caller is not None:
            caller.permit(card, model)
        return card

    async def admit(
        self, conversation: Conversation, caller: Caller | None, card: ModelCard | None = None, *, charge: bool = False
    ) -> Admitted:
        """Admits a conversation with the model's name as the client spelled it.

        Args:
            card: the model, if this request has already looked it up.
            charge: counts the request against the caller's rate. Turns are counted by `RequestContext.open_request`.

        Raises as `resolve`; Invalid for a conversation over a limit, and RateLimited.
        """
        if card is None:
            card = self.resolve(conversation.model, caller, conversation)
        elif caller is not None:
            caller.permit(card, conversation.model)
        media = self._limits.check(conversation)
        if charge:
            _charge(caller)
        return await self._read(_named(conversation, caller, card), card, media)

    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> OpenTurn:
        """Starts a turn, or the first one of an answer with hosted tools, as `TurnGateway.open`."""
        if admitted.notice:
            sink = NoticeSink(sink, admitted.notice)
        gateway = self._gateway if self._hosted is None else self._hosted
        return await _worded(gateway.open(admitted, sink, turn_id=turn_id))

    async def count(self, conversation: Conversation, caller: Caller | None) -> int:
        """Returns the exact number of a conversation's prompt tokens. Raises as `admit`, and TurnwireError."""
        return await _worded(self._gateway.count(await self.admit(conversation, caller, charge=True)))

    async def tokenize(self, conversation: Conversation, caller: Caller | None, add_special_tokens: bool) -> TextReply:
        """Returns the token ids of a conversation's prompt. Raises as `count`."""
        admitted = await self.admit(conversation, caller, charge=True)
        return await _worded(self._gateway.tokenize(admitted, None, add_special_tokens))

    async def tokenize_text(self, model: str, text: str, caller: Caller | None, add_special_tokens: bool) -> TextReply:
        """Returns the token ids of a text. Raises as `resolve`, RateLimited and TurnwireError."""
        return await _worded(
            self._gateway.tokenize(self._without_conversation(model, caller), text, add_special_tokens)
        )

    async def detokenize(self, model: str, token_ids: list[int], caller: Caller | None) -> TextReply:
        """Returns the text of token ids. Raises as `tokenize_text`."""
        return await _worded(self._gateway.detokenize(self._without_conversation(model, caller), token_ids))

    def _without_conversation(self, model: str, caller: Caller | None) -> Admitted:
        card = self.resolve(model, caller)
        _charge(caller)
        return Admitted(_ADMISSION, card, Conversation(card.name, []))

    async def _read(self, conversation: Conversation, card: ModelCard, media: Sequence[Media]) -> Admitted:
        """Puts text in the place of PDFs, and removes notes of this server from earlier answers."""
        if any(isinstance(one, PdfDocument) for one in media):
            conversation = await self._pdfs.read(conversation)
        conversation, known = without_notices(conversation)
        text = ""
        if media and self._notices and wants_notice(conversation):
            new = {one.kind for one in media_of(conversation)} - known
            text = notice(new) if new else ""
        return Admitted(_ADMISSION, card, conversation, text)


def _named(conversation: Conversation, caller: Caller | None, card: ModelCard) -> Conversation:
    """The conversation with the names of the model and its caller."""
    asked, hints = conversation.model, conversation.hints
    client = replace(
        conversation.client,
        tenant=caller.tenant if caller is not None else None,
        alias=asked if asked in card.aliases else None,
    )
    if caller is not None and caller.priority is not None:
        hints = replace(hints, priority=caller.priority)
    return replace(conversation, model=card.name, client=client, hints=hints)


def _charge(caller: Caller | None) -> None:
    if caller is not None:
        caller.limiter.count()


async def _worded(call: Awaitable[T]) -> T:
    """Returns the result of `call`. A refusal of the bus becomes one of the request, which is all that the client
    has."""
    try:
        return await call
    except TooLarge as error:
        if (details := error.info.details) is None:
            raise
        size, limit = details["size_bytes"], details["limit_bytes"]
        raise TooLarge(
            f"The request has {size} bytes without the data of images and documents; the limit is {limit}."
        ) from error
