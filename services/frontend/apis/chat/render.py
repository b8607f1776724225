"""Renders turns, one for each choice, as chunks of Chat Completions, and folds the chunks to one
document.

    start                                           role chunk of every choice
    Delta "Let me look." of reasoning               delta.reasoning_content
    BlockStop of reasoning                          nothing [, reasoning_dispatch]
    BlockStart tool_use name=Read                   delta.tool_calls[{index,id,type,function{
                                                    name,arguments:""}}]
    Delta '{"file_path": "/a'                       delta.tool_calls[{index,function{arguments}}]
    BlockStop complete                              nothing [, tool_call_dispatch]
    Finish                                          delta {} with finish_reason; after the last
                                                    choice usage and [DONE]

Ids, names and roles are sent once: the Python SDK concatenates repeated strings.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from schemas.events import (
    BlockStart,
    BlockStop,
    Dispatch,
    Finish,
    OutputTokens,
    Prepared,
    TokenLogprob,
)
from schemas.token_ids import unpack_ids
from services.frontend.apis.chat import wire
from services.frontend.apis.chat.calls import CallWriter
from services.frontend.apis.chat.history import DETAILS
from services.frontend.apis.shared.openai.chunks import (
    ChoiceRenderer,
    Chunk,
    ChunkCollector,
    Chunks,
    ChunkShape,
    ChunkStream,
    Logprobs,
    UsageAnswer,
    chunk_head,
    logprob,
    plain_chunk,
    reason_of,
    usage_of,
)
from services.frontend.turns.interfaces import RenderInfo

ReasoningField: TypeAlias = Literal["reasoning_content", "reasoning", "both"]
ReasoningPlace: TypeAlias = Literal["reasoning_content", "reasoning", "both", "inline", "omitted"]

_THINK = ("<think>\n", "\n</think>\n\n")
"""The tags around reasoning in the content."""
_UNKNOWN: dict[str, Any] = {"token": "", "logprob": None, "bytes": None, "top_logprobs": []}
"""Stands for a token without a log probability from the engine."""


class ChatSettings(Struct, frozen=True):
    """The operator's settings."""

    reasoning_field: ReasoningField = "reasoning_content"
    """The field that holds reasoning."""
    reasoning_details: bool = False
    """Also send the seal of each reasoning block, in OpenRouter's `reasoning_details`."""
    fingerprint: str | None = None
    """`system_fingerprint` of every answer."""
    served: frozenset[str] = frozenset()
    """The kinds of hosted tools that this server runs."""


class ChatShape(ChunkShape, frozen=True, kw_only=True):
    """The form of one answer. `logprobs`: with the content; requested token ids come with log
    probabilities of their own."""

    reasoning: ReasoningPlace = "reasoning_content"
    """`inline`: in the content, in <think> tags (SGLang's `separate_reasoning: false`)."""
    details: bool = False
    legacy: bool = False
    """The call is in `function_call`."""
    freeform: frozenset[str] = frozenset()
    """Names of the freeform tools."""
    service_tier: str | None = None


def chat_stream(answer: RenderInfo, shape: ChatShape, choices: int = 1) -> ChunkStream:
    """The renderer of one answer."""
    head = chunk_head(f"chatcmpl-{answer.turn}", "chat.completion.chunk", answer, shape)
    if shape.service_tier is not None:
        head.service_tier = shape.service_tier
    renderers = [_ChatChoice(head, answer, shape, index) for index in range(choices)]
    return ChunkStream(head, renderers, shape)


class ChatCollector(ChunkCollector[wire.AnswerChoice]):
    """Collects one answer."""

    def _open(self, choice: wire.ChatChunkChoice, chunk: Chunk) -> wire.AnswerChoice:
        message = wire.AnswerMessage(role="assistant", content="", refusal=None)
        ids: list[int] | UnsetType = UNSET if chunk.prompt_token_ids is UNSET else []
        return wire.AnswerChoice(choice.index, message, None, "stop", ids)

    def _add(self, answer: wire.AnswerChoice, choice: wire.ChatChunkChoice) -> None:
        _add_message(answer.message, choice.delta)

    def _document(self, choices: list[wire.AnswerChoice], usage: UsageAnswer) -> wire.ChatAnswer:
        for choice in choices:
            message = choice.message
            if not message.content and (message.tool_calls or message.function_call):
                message.content = None
        head = self._head
        return wire.ChatAnswer(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            service_tier=head.service_tier,
            prompt_token_ids=self._prompt_ids,
            choices=choices,
            usage=usage,
        )


def _add_message(into: wire.AnswerMessage, piece: wire.ChatMessageDelta) -> None:
    """Adds a delta to the message so far, as the SDKs do."""
    for name in ("content", "refusal", "reasoning_content", "reasoning"):
        text = getattr(piece, name)
        if text is not UNSET:
            before = getattr(into, name) or ""
            setattr(into, name, before + text if before else text)
    if piece.function_call:
        if into.function_call:
            into.function_call.arguments += piece.function_call.arguments
        else:
            into.function_call = piece.function_call
    if piece.reasoning_details:
        into.reasoning_details = [*(into.reasoning_details or []), *piece.reasoning_details]
    for call in piece.tool_calls or ():
        into.tool_calls = into.tool_calls or []
        _add_call(into.tool_calls, call)


def _add_call(calls: list[wire.AnswerCall], piece: wire.AnswerCall) -> None:
    """Adds a new call, or the next piece of one."""
    if piece.index is UNSET or piece.index >= len(calls):
        calls.append(replace(piece, index=UNSET))
        return
    call = calls[piece.index]
    if call.function and piece.function:
        call.function.arguments += piece.function.arguments
    elif call.custom and piece.custom:
        call.custom.input += piece.custom.input


class _ChatChoice(ChoiceRenderer):
    """Renders the chunks of one choice."""

    def __init__(self, head: Chunk, answer: RenderInfo, shape: ChatShape, index: int) -> None:
        self._head = head
        self._answer = answer
        self._shape = shape
        self._index = index
        self._block: BlockStart | None = None
        self._call: CallWriter | None = None
        """The call that is open."""
        self._dispatched: Dispatch | None = None
        """The open call as a complete one."""
        self._calls = 0
        """Calls so far."""
        self._complete_calls = 0
        self._thought_texts: list[str] = []
        """The text of reasoning that will be sent again whole."""
        self._has_reasoning = False
        """Whether the open block has sent reasoning."""
        self._seals: list[str] = []
        """Seals of reasoning since the last call."""
        self._seals_sent = 0

    def opening(self, prepared: Prepared, usage: UsageAnswer | None) -> Sequence[Chunk]:
        """The role chunk."""
        role = wire.ChatMessageDelta(role="assistant", content="", refusal=None)
        chunk = self._chunk(role, usage=usage)
        if prepared.prompt_ids:
            chunk.prompt_token_ids = unpack_ids(prepared.prompt_ids)
        return [chunk]

    def _chunk(
        self, delta: wire.ChatMessageDelta, *, usage: UsageAnswer | None = None, **fields: Any
    ) -> Chunk:
        """One chunk. `fields` of the choice: `logprobs`, `finish_reason`, `stop_reason`,
        `token_ids`."""
        chunk = replace(self._head, choices=[wire.ChatChunkChoice(self._index, delta, **fields)])
        if usage is not None:
            chunk.usage = usage
        return chunk

    def _prepare_plain(self, delta: wire.ChatMessageDelta) -> None:
        """Prepares for further deltas that differ from this one, which is empty, only by their
        text."""
        self.plain = plain_chunk(self._head, wire.ChatChunkChoice(self._index, delta))

    def _start(self, event: BlockStart, out: Chunks) -> None:
        self._block = event
        self.plain = None
        self._thought_texts.clear()
        self._has_reasoning = False
        if event.kind != "tool_use" or (self._shape.legacy and self._calls):
            return
        self._call = CallWriter(
            event,
            self._calls,
            f"{self._answer.turn}c{self._index}b",
            freeform=event.name in self._shape.freeform,
            legacy=self._shape.legacy,
        )
        self._calls += 1
        self._dispatched = None
        out.append(self._chunk(self._call.opening()))
        self._send_seals(self._call.id, out)

    def _delta(self, text: str, tokens: list[TokenLogprob], out: Chunks) -> None:
        block = self._block
        if block is None or block.kind == "hosted":  # this API has no form for searches
            return
        if block.kind == "text":
            self._text(text, tokens, out)
        elif block.kind == "reasoning":
            self._reasoning(text, out)
        elif self._call is not None:
            self._add(self._call.piece(text), out)
            empty = self._call.empty_piece()
            if empty is not None:
                self._prepare_plain(empty)

    def _text(self, text: str, tokens: list[TokenLogprob], out: Chunks) -> None:
        delta = wire.ChatMessageDelta(content=text)
        if tokens and self._shape.logprobs:
            out.append(self._chunk(delta, logprobs=_logprobs(tokens)))
        elif text:
            out.append(self._chunk(delta))
            if not self._shape.logprobs:
                self._prepare_plain(wire.ChatMessageDelta(content=""))

    def _dispatch(self, event: Dispatch) -> None:
        self._dispatched = event

    def _stop(self, event: BlockStop, out: Chunks) -> None:
        block = self._block
        self._block = None
        self.plain = None
        if block is None:
            return
        if block.kind == "tool_use":
            self._stop_call(event, out)
        elif block.kind == "reasoning" and self._has_reasoning:
            self._stop_reasoning(event, out)

    def _tokens(self, event: OutputTokens, out: Chunks) -> None:
        logprobs = None if event.logprobs is None else _logprobs(event.logprobs)
        out.append(self._chunk(wire.ChatMessageDelta(), token_ids=event.ids, logprobs=logprobs))

    def _finish(self, event: Finish, out: Chunks) -> None:
        if self._block is not None:
            self._stop(BlockStop(self._block.block, complete=False), out)
        self._send_seals(None, out)
        calls = None
        if self._complete_calls:
            calls = "function_call" if self._shape.legacy else "tool_calls"
        usage = usage_of(event.usage) if self._shape.continuous_usage else None
        out.append(self._chunk(wire.ChatMessageDelta(), usage=usage, **reason_of(event, calls)))

    def _reasoning(self, text: str, out: Chunks) -> None:
        if not text:
            return
        is_first = not self._has_reasoning
        self._has_reasoning = True
        if self._answer.dispatch_reasoning:
            self._thought_texts.append(text)
        place = self._shape.reasoning
        if place == "omitted":
            return
        if place == "both":
            out.append(self._chunk(wire.ChatMessageDelta(reasoning_content=text, reasoning=text)))
            return

        if place == "inline" and is_first:
            text = _THINK[0] + text
        if not self._answer.dispatch_reasoning:
            self._prepare_plain(_reasoning_delta(place, ""))
        out.append(self._chunk(_reasoning_delta(place, text)))

    def _stop_reasoning(self, event: BlockStop, out: Chunks) -> None:
        if self._shape.reasoning == "omitted":
            return
        if self._shape.reasoning == "inline":
            out.append(self._chunk(wire.ChatMessageDelta(content=_THINK[1])))
        if self._shape.details and event.seal:
            self._seals.append(event.seal)
        if self._answer.dispatch_reasoning and event.complete:
            reasoning = {"index": self._index, "reasoning_content": "".join(self._thought_texts)}
            out.append(replace(self._head, reasoning_dispatch=reasoning))

    def _stop_call(self, event: BlockStop, out: Chunks) -> None:
        call = self._call
        self._call = None
        if call is None:
            return
        self._add(call.end(complete=event.complete), out)
        if not event.complete:
            return
        self._complete_calls += 1
        if self._dispatched is None or not self._answer.dispatch:
            return
        complete = call.complete_call(self._dispatched.arguments)
        if complete is not None:
            dispatch = {"choice_index": self._index, "tool_call": complete}
            out.append(replace(self._head, tool_call_dispatch=dispatch))

    def _send_seals(self, call_id: str | None, out: Chunks) -> None:
        """Sends the seals since the last call in `reasoning_details`. `call_id` None: the turn is
        over.

        A client that returns them restores the reasoning and its place: an entry has the id of the
        call that follows it, and clients keep it with that call. The SDKs join entries by `index`,
        so each is sent once, whole.
        """
        if not self._seals:
            return
        details = []
        for index, seal in enumerate(self._seals, self._seals_sent):
            id = call_id or f"rs_{self._answer.turn}{self._index}{index}"
            details.append(wire.ReasoningDetail("reasoning.encrypted", seal, id, DETAILS, index))
        self._seals_sent += len(details)
        self._seals.clear()
        out.append(self._chunk(wire.ChatMessageDelta(reasoning_details=details)))

    def _add(self, delta: wire.ChatMessageDelta | None, out: Chunks) -> None:
        if delta is not None:
            out.append(self._chunk(delta))


def _reasoning_delta(place: ReasoningPlace, text: str) -> wire.ChatMessageDelta:
    if place == "inline":
        return wire.ChatMessageDelta(content=text)
    if place == "reasoning":
        return wire.ChatMessageDelta(reasoning=text)
    return wire.ChatMessageDelta(reasoning_content=text)


def _logprobs(tokens: Sequence[TokenLogprob | None]) -> Logprobs:
    content = [_UNKNOWN if token is None else logprob(token) for token in tokens]
    return {"content": content, "refusal": None}
