"""Renders streams and documents of Chat Completions and Completions: the common part.

A stream encodes its chunks; a document folds them. The chunk of a plain token is made of fixed
bytes around the encoded text.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Self, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace
from typing_extensions import override

from schemas.errors import ErrorInfo
from schemas.events import (
    Finish,
    FinishReason,
    Prepared,
    TokenLogprob,
    TopLogprob,
    TurnEvent,
    Usage,
    failure_of,
)
from services import __version__
from services.frontend.apis.shared.errors import OpenAIError, openai_error
from services.frontend.apis.shared.turn_renderer import Plain, TurnRenderer
from services.frontend.turns.answer_record import answer_usage
from services.frontend.turns.interfaces import Collector, Renderer, RenderInfo

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
EVENTS = "^(message|tool_call_dispatch|reasoning_dispatch)$"
"""The pattern of event names in a stream."""
FINGERPRINT = f"fp_turnwire_{__version__}"
_LENGTH = (FinishReason.LENGTH, FinishReason.CONTEXT)
_encode = msgspec.json.Encoder().encode


class UsageAnswer(Struct):
    """Token counts; `prompt_tokens` includes those that were read from the cache,
    `completion_tokens` reasoning."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class Chunk(Struct, kw_only=True):
    """One chunk of a stream. All chunks of an answer have the same head; `choices` have the API's
    own type."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str | None
    service_tier: str | UnsetType = UNSET
    choices: list[Any] = []
    prompt_token_ids: list[int] | UnsetType = UNSET
    tool_call_dispatch: dict[str, Any] | UnsetType = UNSET
    """A complete call once more, on request. Every client ignores a chunk without choices and with
    a member of its own."""
    reasoning_dispatch: dict[str, Any] | UnsetType = UNSET
    """A finished thought once more, in the same form."""
    usage: UsageAnswer | UnsetType | None = UNSET


AnyChunk: TypeAlias = Chunk | OpenAIError
"""An error is the last chunk; the SDKs raise it. No `[DONE]` follows."""
Chunks: TypeAlias = list[AnyChunk]
Logprobs: TypeAlias = dict[str, Any]
"""The log probabilities of tokens, in the form of one of the APIs."""


class ChunkShape(Struct, frozen=True, kw_only=True):
    """The form of an answer in both APIs."""

    logprobs: bool = False
    include_usage: bool = False
    """The stream ends with the token counts."""
    continuous_usage: bool = False
    """Other chunks also carry the token counts, once they are known."""
    fingerprint: str | None = None

    def for_document(self) -> Self:
        """The form of chunks for a document."""
        return replace(self, include_usage=True, continuous_usage=False)


C = TypeVar("C")


class ChoiceRenderer(TurnRenderer[AnyChunk]):
    """Renders the chunks of one choice."""

    @override
    def encode(self, events: Sequence[AnyChunk]) -> bytes:
        return b"".join(map(encode_chunk, events))

    def _fail(self, info: ErrorInfo, out: Chunks) -> None:
        out.append(OpenAIError(openai_error(info)))

    @abstractmethod
    def opening(self, prepared: Prepared, usage: UsageAnswer | None) -> Sequence[Chunk]:
        """The chunks before the first event. `usage`: set if requested."""


class ChunkStream(Renderer):
    """Renders one answer of one or more choices."""

    def __init__(
        self, head: Chunk, choices: Sequence[ChoiceRenderer], shape: ChunkShape, prompts: int = 1
    ) -> None:
        """`head`: see `chunk_head`. `prompts`: the number of prompts; all have the same number of
        choices, in order."""
        self.head = head
        self._choices = choices
        self._shape = shape
        self._prompts = prompts
        self._usages: dict[int, Usage] = {}

    @override
    def start(self, prepared: Sequence[Prepared]) -> bytes:
        return b"".join(map(encode_chunk, self.opening(prepared)))

    @override
    def render(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        out = self._choices[choice].render(events)
        if not self._ends(events[-1], choice):
            return out
        if self._shape.include_usage:
            out += encode_chunk(self._last())
        return out + DONE

    @override
    def error(self, info: ErrorInfo) -> bytes:
        return encode_chunk(OpenAIError(openai_error(info)))

    def opening(self, prepared: Sequence[Prepared]) -> list[Chunk]:
        """The chunks before the first event."""
        usage = None
        if self._shape.continuous_usage:
            choices_of_a_prompt = len(prepared) // self._prompts
            usage = first_usage(prepared[::choices_of_a_prompt])
        chunks: list[Chunk] = []
        for choice, turn in zip(self._choices, prepared, strict=True):
            chunks += choice.opening(turn, usage)
        return chunks

    def chunks(self, events: Sequence[TurnEvent], choice: int) -> Chunks:
        """The chunks for the next events of a choice; after the last event also the chunk with the
        token counts."""
        out = self._choices[choice].api_events(events)
        return [*out, self._last()] if self._ends(events[-1], choice) else out

    def _ends(self, last: TurnEvent, choice: int) -> bool:
        """Whether the event ends the last open choice."""
        if type(last) is not Finish or failure_of(last) is not None:
            return False
        self._usages[choice] = last.usage
        return len(self._usages) == len(self._choices)

    def _last(self) -> Chunk:
        usage = answer_usage(self._usages, len(self._choices) // self._prompts)
        return replace(self.head, usage=usage_of(usage))


class ChunkCollector(Collector, Generic[C]):
    """Collects one answer: folds the chunks of its stream. A subclass makes the document."""

    def __init__(self, stream: ChunkStream) -> None:
        self._stream = stream
        self._head = stream.head
        self._choices: dict[int, C] = {}
        self._prompt_ids: list[int] | UnsetType = UNSET
        self._usage: UsageAnswer | None = None

    @override
    def start(self, prepared: Sequence[Prepared]) -> None:
        self._fold(self._stream.opening(prepared))

    @override
    def add(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        self._fold(self._stream.chunks(events, choice))

    @override
    def body(self) -> bytes:
        """Raises RuntimeError where a turn has not finished."""
        if self._usage is None:
            raise RuntimeError("the turn has not finished")
        choices = [self._choices[index] for index in sorted(self._choices)]
        return _encode(self._document(choices, self._usage))

    def _fold(self, chunks: Sequence[AnyChunk]) -> None:
        for chunk in chunks:
            if isinstance(chunk, OpenAIError):
                continue
            self._usage = chunk.usage or self._usage
            if chunk.prompt_token_ids is not UNSET:
                self._prompt_ids = chunk.prompt_token_ids
            for choice in chunk.choices:
                self._fold_choice(choice, chunk)

    def _fold_choice(self, choice: Any, chunk: Chunk) -> None:
        """Adds a piece to its choice."""
        answer: Any = self._choices.get(choice.index)
        if answer is None:
            answer = self._open(choice, chunk)
            self._choices[choice.index] = answer
        self._add(answer, choice)
        answer.logprobs = add_logprobs(answer.logprobs, choice.logprobs)
        answer.finish_reason = choice.finish_reason or answer.finish_reason
        if choice.token_ids is not UNSET:
            answer.token_ids = (answer.token_ids or []) + choice.token_ids
        if choice.stop_reason is not UNSET:
            answer.stop_reason = choice.stop_reason

    @abstractmethod
    def _open(self, choice: Any, chunk: Chunk) -> C:
        """Makes an empty choice for the first piece of one."""

    @abstractmethod
    def _add(self, answer: C, choice: Any) -> None:
        """Adds the text of a piece to its choice."""

    @abstractmethod
    def _document(self, choices: list[C], usage: UsageAnswer) -> Struct:
        """Makes the document of the answer."""


def encode_chunk(chunk: AnyChunk) -> bytes:
    """The bytes of a chunk in the stream."""
    name = b""
    if isinstance(chunk, Chunk) and not chunk.choices:
        if chunk.tool_call_dispatch is not UNSET:
            name = b"event: tool_call_dispatch\n"
        elif chunk.reasoning_dispatch is not UNSET:
            name = b"event: reasoning_dispatch\n"
    return b"%bdata: %b\n\n" % (name, _encode(chunk))


def plain_chunk(head: Chunk, choice: Struct) -> Plain:
    """The bytes before and after the text of every chunk with a choice like this one, which has
    an empty text."""
    before, choices, after = encode_chunk(head).partition(b'"choices":[')
    choice_before, _, choice_after = _encode(choice).partition(b'""')
    return before + choices + choice_before, choice_after + after


def add_logprobs(into: Logprobs | None, piece: Logprobs | None) -> Logprobs | None:
    """Appends the log probabilities of a chunk to the earlier ones."""
    if into is None:
        return piece
    if piece is None:
        return into
    joined = dict(into)
    for name, values in into.items():
        if values is not None:
            joined[name] = values + piece[name]
    return joined


def chunk_head(id: str, object: str, answer: RenderInfo, shape: ChunkShape) -> Chunk:
    """A chunk without choices: the members that all chunks of an answer have."""
    return Chunk(
        id=id,
        object=object,
        created=answer.created,
        model=answer.model,
        system_fingerprint=shape.fingerprint,
        usage=None if shape.include_usage else UNSET,
    )


def reason_of(finish: Finish, calls: str | None = None) -> dict[str, Any]:
    """`finish_reason`; and, where a stop string ended the text, that string (vLLM's `stop_reason`).

    `calls`: the reason if the turn has complete calls. It applies only if the model stopped by
    itself; a turn that was cut off after a call has `length`, as in the native API.
    """
    if finish.reason in _LENGTH:
        return {"finish_reason": "length"}
    if finish.reason is FinishReason.STOP_STRING:
        return {"finish_reason": "stop", "stop_reason": finish.stop_string}
    return {"finish_reason": calls or "stop"}


def logprob(token: TokenLogprob) -> dict[str, Any]:
    """A token and its log probability, with the likeliest tokens at its place."""
    return {**_logprob(token), "top_logprobs": [_logprob(top) for top in token.top]}


def _logprob(token: TokenLogprob | TopLogprob) -> dict[str, Any]:
    data = token.data or token.token.encode("utf-8", "replace")
    return {"token": token.token, "logprob": token.logprob, "bytes": list(data)}


def usage_of(usage: Usage) -> UsageAnswer:
    """Token counts of a choice, or of the answer (`answer_usage`)."""
    return UsageAnswer(
        usage.prompt,
        usage.output,
        usage.prompt + usage.output,
        {"cached_tokens": usage.cached},
        {"reasoning_tokens": usage.reasoning},
    )


def first_usage(prepared: Sequence[Prepared]) -> UsageAnswer:
    """Token counts before decoding, with the expected cached part. `prepared`: one for each
    prompt."""
    prompt = sum(turn.prompt_tokens for turn in prepared)
    cached = sum(turn.cached for turn in prepared)
    return usage_of(Usage(prompt, cached))
