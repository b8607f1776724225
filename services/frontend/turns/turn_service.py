"""Opens turns and counts tokens for all requests (`TurnService`), and looks up and uses the model
of one request (`ModelAccess`)."""

import re
import time
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from schemas.control import ModelCard
from schemas.conversation import Conversation
from schemas.errors import TooLarge
from schemas.requests import TextReply
from services.frontend.http.auth import Caller
from services.frontend.http.request_context import RequestContext
from services.frontend.turns.admission import Admission
from services.frontend.turns.flusher import Flusher
from services.frontend.turns.interfaces import (
    Admitted,
    OpenTurn,
    ParsedRequest,
    Pipeline,
    RenderInfo,
    TurnGateway,
    TurnSink,
)
from services.frontend.turns.key_usage import KeyUsage
from services.frontend.turns.metrics import FrontendMetrics
from services.frontend.turns.notice import NoticeSink
from services.guides.promises import not_enforced
from services.runtime.config.frontend import FrontendConfig
from services.runtime.long_work import run_in_thread_if_long
from services.runtime.observability.telemetry import FilteringBoundLogger

MAX_DROPPED = 16
MAX_DROPPED_CHARS = 64
T = TypeVar("T")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass
class TurnService:
    """Opens turns, counts and tokenizes, for the requests of all APIs."""

    pipeline: Pipeline
    gateway: TurnGateway
    """That of hosted tools, which opens turns with that of rollouts, if any, or the pipeline's."""
    admission: Admission
    config: FrontendConfig
    metrics: FrontendMetrics
    usage: KeyUsage
    log: FilteringBoundLogger
    flusher: Flusher = field(init=False)
    """Flushes all streams of this server."""

    def __post_init__(self) -> None:
        self.flusher = Flusher(self.log)

    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> OpenTurn:
        """Starts a turn as `TurnGateway.open`; with hosted tools, the first turn of the answer."""
        if admitted.notice:
            sink = NoticeSink(sink, admitted.notice)
        return await _describe_sizes(self.gateway.open(admitted, sink, turn_id=turn_id))

    async def count(
        self, conversation: Conversation, caller: Caller, card: ModelCard | None = None
    ) -> int:
        """Returns the exact number of a conversation's prompt tokens. `card`: as for
        `Admission.admit`.

        Raises as `Admission.admit`, and TurnwireError.
        """
        admitted = await self.admission.admit(conversation, caller, card, is_turn=False)
        return await _describe_sizes(self.pipeline.count(admitted))

    async def tokenize(
        self, conversation: Conversation, caller: Caller, add_special_tokens: bool
    ) -> TextReply:
        """Returns the token ids of a conversation's prompt. Raises as `count`, and RateLimited."""
        caller.limiter.count()
        admitted = await self.admission.admit(conversation, caller, is_turn=False)
        return await _describe_sizes(self.pipeline.tokenize(admitted, None, add_special_tokens))

    async def tokenize_text(
        self, model: str, text: str, caller: Caller, add_special_tokens: bool
    ) -> TextReply:
        """Returns the token ids of a text. Raises as `Admission.admit_text`, and TurnwireError."""
        admitted = self.admission.admit_text(model, caller)
        return await _describe_sizes(self.pipeline.tokenize(admitted, text, add_special_tokens))

    async def detokenize(self, model: str, token_ids: list[int], caller: Caller) -> TextReply:
        """Returns the text of token ids. Raises as `tokenize_text`."""
        admitted = self.admission.admit_text(model, caller)
        return await _describe_sizes(self.pipeline.detokenize(admitted, token_ids))


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
        """Returns the exact number of prompt tokens. Raises as `TurnService.count`."""
        card = self.card_for(conversation)
        return await self.turns.count(conversation, self.context.caller, card)

    async def count_for_client(self, conversation: Conversation) -> int:
        """`count`, for a request that asks only for the number: the access log gets it."""
        tokens = await self.count(conversation)
        self.context.fields |= {"model": conversation.model, "prompt_tokens": tokens}
        return tokens

    async def report(self, request: ParsedRequest) -> None:
        """Records for headers and log what the answer will lack. Raises as `card_for`."""
        conversation = request.conversations[0]
        card = self.card_for(conversation)
        self.not_enforced = await run_in_thread_if_long(
            not_enforced, conversation, card.features, card.family
        )
        dropped = _safe_names(request.notes)
        if dropped:
            self.context.report("x-turnwire-dropped", "dropped", dropped)
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


async def _describe_sizes(call: Awaitable[T]) -> T:
    """Returns the result of `call`. A message too large for the bus is reported as a request too
    large: clients do not know the bus."""
    try:
        return await call
    except TooLarge as error:
        details = error.info.details
        if details is None:
            raise
        raise TooLarge(
            f"The request has {details['size_bytes']} bytes without the data of images and "
            f"documents; the limit is {details['limit_bytes']}."
        ) from error


def _safe_names(names: Iterable[str]) -> list[str]:
    """Returns names that the client may have chosen, few, short and safe for a header."""
    safe = [_UNSAFE.sub("", name)[:MAX_DROPPED_CHARS] for name in names]
    return safe[:MAX_DROPPED]
