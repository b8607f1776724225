"""Admits requests to the models: checks the caller's rights and the limits of conversations, and
reads documents and images.

The gateway takes only an `Admitted` request, and only this module makes one, so no route can forget
a check.
"""

from msgspec.structs import replace

from schemas.control import VISION, ModelCard
from schemas.conversation import Conversation
from schemas.errors import Invalid, NotFound
from services.frontend.http.auth import Caller
from services.frontend.http.errors import UnknownModel
from services.frontend.media.media_reader import MediaReader
from services.frontend.models.catalog import Catalog
from services.frontend.turns.conversation_limits import ConversationLimits
from services.frontend.turns.hidden.memory import HiddenMemory
from services.frontend.turns.interfaces import Admitted
from services.frontend.turns.notice import make_notice, may_have_notice, without_notices
from services.images.parts import media_of
from services.runtime.long_work import run_in_thread_if_long


class Admission:
    """Admits requests."""

    def __init__(
        self,
        catalog: Catalog,
        limits: ConversationLimits,
        media: MediaReader,
        *,
        hidden: HiddenMemory,
        notices: bool,
    ) -> None:
        """
        Args:
            hidden: defers tools, and remembers what clients do not see of answers.
            notices: add a note to the answer about media that the model does not receive, once in a
                session.
        """
        self._catalog = catalog
        self._limits = limits
        self._media = media
        self._hidden = hidden
        self._notices = notices

    def models(self, caller: Caller) -> list[ModelCard]:
        """Returns the served models that the caller may use."""
        return [card for card in self._catalog.models() if caller.sees(card)]

    def resolve(
        self, model: str, caller: Caller, conversation: Conversation | None = None
    ) -> ModelCard:
        """Returns the model with this name, as `Catalog.resolve`; of models that share an alias,
        one that the caller may use.

        Raises UnknownModel, ForbiddenModel, and Invalid for an empty name.
        """
        model = caller.model_for(model)
        try:
            card = self._catalog.resolve(model, conversation, caller.sees)
        except NotFound:
            if not model:
                raise Invalid("model: Field required", param="model") from None
            names = dict.fromkeys(served.served_name for served in self.models(caller))
            raise UnknownModel(model, [*names]) from None
        caller.permit(card, model)
        return card

    async def admit(
        self,
        conversation: Conversation,
        caller: Caller,
        card: ModelCard | None = None,
        *,
        is_turn: bool = True,
    ) -> Admitted:
        """Admits a conversation with the model's name as the client spelled it.

        Args:
            card: the model, if this request has already looked it up.
            is_turn: the images are stored for a worker.

        Raises as `resolve`; Invalid for a conversation over a limit, for an image that cannot be
        used, and for tools that the model's template would drop; TurnwireError if the images cannot
        be stored.
        """
        if card is None:
            card = self.resolve(conversation.model, caller, conversation)
        else:
            caller.permit(card, conversation.model)
        _check_tools(conversation, card)
        media = await run_in_thread_if_long(self._limits.check, conversation)
        conversation, images = await self._media.read(
            conversation, media, caller.tenant, vision=VISION in card.features, store=is_turn
        )
        conversation, note = self._with_notice(conversation, has_media=bool(media))
        conversation = await self._hidden.add(conversation, caller.owner)
        named = _with_names(conversation, caller, card)
        return Admitted(caller, card, named, note, images)

    def admit_text(self, model: str, caller: Caller) -> Admitted:
        """Admits a request about text or tokens without a conversation. Raises as `resolve`, and
        RateLimited."""
        card = self.resolve(model, caller)
        caller.limiter.count()
        return Admitted(caller, card, Conversation(card.name, []))

    def _with_notice(
        self, conversation: Conversation, *, has_media: bool
    ) -> tuple[Conversation, str]:
        """Removes this server's notes from earlier answers. Returns also the note for the new
        answer; "" for none."""
        conversation, noted = without_notices(conversation)
        if not (has_media and self._notices and may_have_notice(conversation)):
            return conversation, ""
        dropped = {item.kind for item in media_of(conversation) if not item.hash}
        new = dropped - noted
        return conversation, make_notice(new) if new else ""


def _check_tools(conversation: Conversation, card: ModelCard) -> None:
    if conversation.tools and not card.tools:
        raise Invalid(
            f"{card.name} does not support tools: its chat template does not list them, so the "
            "model would never see them. Send the request without tools, or serve the model with a "
            "template that lists them (--chat-template).",
            param="tools",
        )


def _with_names(conversation: Conversation, caller: Caller, card: ModelCard) -> Conversation:
    """Returns the conversation as other stages get it, with the names of the model and of its
    caller."""
    name = conversation.model
    hints = conversation.hints
    client = replace(
        conversation.client,
        tenant=caller.tenant,
        alias=name if name in card.aliases else None,
    )
    if caller.priority is not None:
        hints = replace(hints, priority=caller.priority)
    return replace(
        conversation,
        model=card.name,
        adapter=card.adapter,
        client=client,
        hints=hints,
        summary=False,
    )
