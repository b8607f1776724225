"""Prefills the certain prefix of a session's next turn on the worker that decoded this one, while
that is idle.

When a turn has ended, the template fixes the next prompt up to the answer of the user or the tools.
Most of these tokens were just decoded by the engine. Where the template changes history (drops
the reasoning of an answered question), an idle worker can prefill the other tokens before the next
request comes (`nvext.agent_hints.speculative_prefill`).
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace
from prometheus_client import Counter
from typing_extensions import override

from schemas.conversation import Call, Conversation, Message, Part, Result, Sampling, Text, ToolSpec
from schemas.errors import TurnwireError
from schemas.events import PromptImage
from schemas.ledger import LedgerContext, LedgerEntry
from schemas.requests import ABSENT, GenerateRequest
from schemas.session import tenant_key
from schemas.token_ids import pack_ids
from services.preprocessor.ledger_reader import LedgerReader
from services.preprocessor.next_prompts import NextPrompts
from services.preprocessor.preparation import Preparation
from services.preprocessor.prepared_turn import PreparedTurn
from services.preprocessor.routing.kv_view import KvView
from services.preprocessor.routing.placement import Placement
from services.preprocessor.routing.worker_links import ask_worker
from services.preprocessor.turn_builder import MAX_PRIORITY
from services.runtime.process import Process
from services.tokenization.block_keys import with_images
from services.tokenization.segments import TokenIds, common_prefix

MAX_PENDING = 4096
"""Limit of turns that are waited for; the oldest are dropped."""
LEAST_TOKENS = 64
"""The least number of tokens that are worth a request."""

REPLIES = ("Next", "7 steps")
"""Two replies without a common beginning: what both prompts begin with does not depend on the
reply."""


class PendingTurn(msgspec.Struct, frozen=True):
    """A turn that is being decoded."""

    turn: str
    worker: str
    conversation: Conversation
    tools: list[ToolSpec]
    """The tools as the model sees them."""


class PrefilledNextPrompts(NextPrompts):
    """Prefills the next prompt after turns with the hint: the ledger has what they wrote."""

    def __init__(
        self,
        process: Process,
        placement: Placement,
        kv: KvView,
        preparation: Preparation,
        ledger: LedgerReader,
    ) -> None:
        self._process = process
        self._placement = placement
        self._kv = kv
        self._preparation = preparation
        self._model = preparation.setup.card.name
        self._ledger = ledger
        self._pending: dict[bytes, PendingTurn] = {}
        """The turns that are waited for, the oldest first."""
        self._done = Counter(
            "turnwire_speculative_prefills",
            "Turns for which a prefill of the next prompt was requested, by outcome.",
            ["outcome"],
            registry=process.metrics,
        )
        ledger.listen(self.ended)

    @override
    def note_turn(self, turn: PreparedTurn, worker: str) -> None:
        conversation = turn.request.conversation
        if turn.ledger is None or not conversation.hints.speculative_prefill:
            return
        self._kv.follow()
        if len(self._pending) >= MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        pending = PendingTurn(turn.request.turn, worker, conversation, turn.prompt.tools)
        self._pending[_key(turn.ledger)] = pending

    @override
    def forget_turn(self, turn: PreparedTurn) -> None:
        if turn.ledger is not None:
            self._pending.pop(_key(turn.ledger), None)

    def ended(self, entry: LedgerEntry) -> None:
        """Starts the prefill after a turn with the hint that has ended, here or elsewhere."""
        turn = self._pending.pop(_key(entry.context), None)
        if turn is not None and not self._process.draining:
            self._process.spawn(self._prefill(turn, entry), f"prefill after {turn.turn}")

    async def _prefill(self, turn: PendingTurn, entry: LedgerEntry) -> None:
        try:
            outcome = await self._try(turn, entry)
        except TurnwireError as error:
            outcome = "refused"
            self._process.log.info("preprocessor.prefill_refused", turn=turn.turn, error=str(error))
        self._done.labels(outcome).inc()

    async def _try(self, turn: PendingTurn, entry: LedgerEntry) -> str:
        prefix = await self._preparation.threads.run(self._prefix, turn, entry)
        if prefix is None:
            return "unreadable"
        ids, images = prefix
        packed = pack_ids(ids)
        block_key_ids = with_images(packed, images)
        cached = self._placement.cached_tokens(turn.worker, block_key_ids, turn.conversation)
        if cached is None:
            return "gone"
        if len(ids) - cached < LEAST_TOKENS:
            return "known"

        request = self._request(turn, packed, images)
        reply = await ask_worker(self._process, turn.worker, request)
        return "done" if reply.error is None else "busy"

    def _prefix(
        self, turn: PendingTurn, entry: LedgerEntry
    ) -> "tuple[TokenIds, list[PromptImage]] | None":
        """The beginning of the next prompt; None: the turn's tokens cannot be read."""
        ended = self._ledger.read_turn(entry, turn.tools)
        if ended is None or not ended.parts:
            return None
        prompt, other = (
            self._preparation.make_prompt_here(with_reply(turn.conversation, ended.parts, reply))
            for reply in REPLIES
        )
        return certain_prefix(prompt.ids, prompt.images, other.ids)

    def _request(
        self, turn: PendingTurn, packed: bytes, images: list[PromptImage]
    ) -> GenerateRequest:
        conversation = turn.conversation
        return GenerateRequest(
            turn=f"{turn.turn}n",
            attempt=1,
            model=self._model,
            prompt=packed,
            parser="",
            frontend="",
            sampling=Sampling(max_tokens=0),
            stop_ids=[],
            context=ABSENT,
            priority=-MAX_PRIORITY,
            cache_salt=self._placement.cache_salt(conversation),
            session=tenant_key(conversation, conversation.client.session),
            images=images,
            adapter=conversation.adapter,
            any_weights=conversation.hints.any_weights,
        )


def _key(context: LedgerContext) -> bytes:
    return context.state + context.head_hash


def certain_prefix(
    ids: TokenIds, images: Sequence[PromptImage], other_ids: TokenIds
) -> tuple[TokenIds, list[PromptImage]]:
    """The ids that two prompts have in common, and their images. Every prompt begins with them that
    continues the conversation after the same turn of the model, if the two have different replies
    to it (`REPLIES`)."""
    certain = common_prefix(ids, other_ids)
    return certain, [image for image in images if image.at + image.tokens <= len(certain)]


def with_reply(conversation: Conversation, answer: Sequence[Part], reply: str) -> Conversation:
    """The conversation with the model's turn and a reply to it: results if it called tools, else a
    user message."""
    results: list[Part] = [
        Result(part.call_id, [Text(reply)], name=part.name)
        for part in answer
        if isinstance(part, Call)
    ]
    next_message = Message("user", [Text(reply)])
    if results:
        next_message = Message("tool", results)
    answered = [*conversation.messages, Message("assistant", list(answer)), next_message]
    return replace(conversation, messages=answered)
