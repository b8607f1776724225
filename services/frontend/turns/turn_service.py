"""What answers need of this server (`TurnService`), and what one request may do with its model
(`ModelAccess`)."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from schemas.control import ModelCard
from schemas.conversation import Conversation
from services.frontend.http.request_context import RequestContext
from services.frontend.turns.admission import Admission
from services.frontend.turns.flusher import Flusher
from services.frontend.turns.interfaces import Admitted, ParsedRequest, RenderInfo
from services.frontend.turns.key_usage import KeyUsage
from services.frontend.turns.metrics import FrontendMetrics
from services.guides.promises import not_enforced
from services.runtime.config.frontend import FrontendConfig
from services.runtime.long_work import run_in_thread_if_long
from services.runtime.observability.telemetry import FilteringBoundLogger

MAX_DROPPED = 16
MAX_DROPPED_CHARS = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass
class TurnService:
    """What the answers to all requests of all APIs share."""

    admission: Admission
    config: FrontendConfig
    metrics: FrontendMetrics
    usage: KeyUsage
    log: FilteringBoundLogger
    flusher: Flusher = field(init=False)
    """Flushes all streams of this server."""

    def __post_init__(self) -> None:
        self.flusher = Flusher(self.log)


class ModelAccess:
    """The model of one request, and what the request may do with it. It is looked up once, with the
    first of the request's conversations, so that all its turns and counts have the same model."""

    def __init__(self, turns: TurnService, context: RequestContext) -> None:
        self.turns = turns
        self.context = context
        self.card: ModelCard | None = None
        """None until it is looked up."""
        self.not_enforced: Sequence[str] = ()
        """Promises of the request that the engine does not enforce (`guides.promises`)."""

    def card_for(self, conversation: Conversation) -> ModelCard:
        """Returns the request's model. Raises as `Admission.resolve`."""
        if self.card is None:
            admission = self.turns.admission
            self.card = admission.resolve(conversation.model, self.context.caller, conversation)
        return self.card

    def name_for(self, conversation: Conversation) -> str:
        """Returns the model's name as the client spelled it; the served one if the request names
        none. Raises as `card_for`."""
        return conversation.model or self.card_for(conversation).served_name

    async def count(self, conversation: Conversation) -> int:
        """Returns the exact number of prompt tokens. Raises as `Admission.count`."""
        card = self.card_for(conversation)
        return await self.turns.admission.count(conversation, self.context.caller, card)

    async def count_for_client(self, conversation: Conversation) -> int:
        """`count`, for a request that asks only for the number: the access log gets it."""
        tokens = await self.count(conversation)
        self.context.fields |= {"model": conversation.model, "prompt_tokens": tokens}
        return tokens

    async def admit(self, conversation: Conversation) -> Admitted:
        """Admits a conversation to the model. Raises as `Admission.admit`."""
        card = self.card_for(conversation)
        return await self.turns.admission.admit(conversation, self.context.caller, card)

    async def report(self, request: ParsedRequest) -> None:
        """Records for headers and log what the answer will lack. Raises as `card_for`."""
        conversation = request.conversations[0]
        card = self.card_for(conversation)
        self.not_enforced = await run_in_thread_if_long(
            not_enforced, conversation, card.features, card.family
        )
        dropped = _safe_names(request.notes)
        if dropped:
            self.context.report("x-turnwire-dropped-tools", "dropped_tools", dropped)
        if self.not_enforced:
            self.context.report("x-turnwire-not-enforced", "not_enforced", self.not_enforced)

    def render_info(
        self, model: str, *, dispatch: bool = False, dispatch_reasoning: bool = False
    ) -> RenderInfo:
        """Returns the ids and times of an answer that is made now. `model`: see `name_for`."""
        return RenderInfo(
            turn=self.context.id,
            request_id=self.context.request_id,
            model=model,
            created=int(time.time()),
            clock=time.time,
            dispatch=dispatch,
            dispatch_reasoning=dispatch_reasoning,
        )


def _safe_names(names: Iterable[str]) -> list[str]:
    """Returns names that the client may have chosen, few, short and safe for a header."""
    safe = [_UNSAFE.sub("", name)[:MAX_DROPPED_CHARS] for name in names]
    return safe[:MAX_DROPPED]
