"""Streams and documents of Chat Completions and Completions: what is the same in both.

A chunk is spliced from bytes that were made once and the encoded text. A document is its own stream, merged.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from schemas.errors import ErrorInfo
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Dispatch,
    Finish,
    FinishReason,
    OutputTokens,
    Prepared,
    TokenLogprob,
    TopLogprob,
    TurnEvent,
    Usage,
)
from schemas.frames import unpack_ids
from services import __version__
from services.frontend.apis.base import Reply, failure_of
from services.frontend.apis.common.merging import merge, payloads
from services.frontend.apis.common.shared_errors import openai_error

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
EVENTS = "^(message|tool_call_dispatch|reasoning_dispatch)$"
"""Names of a stream's events."""
FINGERPRINT = f"fp_turnwire_{__version__}"
_LENGTH = (FinishReason.LENGTH, FinishReason.CONTEXT)
_encode = msgspec.json.Encoder().encode


class UsageAnswer(Struct):
    """Token counts; `prompt_tokens` includes those that were read from the cache, `completion_tokens` reasoning."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class ChoiceWriter(ABC):
    """Writes the chunks of one choice: of its blocks, their deltas, and its end."""

    plain: tuple[bytes, bytes] | None = None
    """Set where the next text delta is only spliced in between these and changes nothing else."""

    def begin(self, event: BlockStart, out: list[bytes]) -> None:  # noqa: B027  not every API has it
        """A block begins."""

    @abstractmethod
    def delta(self, text: str, tokens: list[TokenLogprob], out: list[bytes]) -> None:
        """Text of the open block."""

    def dispatch(self, event: Dispatch) -> None:  # noqa: B027  not every API has it
        """The open block is a complete call."""

    def stop(self, event: BlockStop, out: list[bytes]) -> None:  # noqa: B027  not every API has it
        """A block ends."""

    @abstractmethod
    def tokens(self, event: OutputTokens, out: list[bytes]) -> None:
        """Ids of output tokens."""

    @abstractmethod
    def finish(self, event: Finish, out: list[bytes], usage: dict[str, Any] | None) -> None:
        """The turn ends."""


W = TypeVar("W", bound=ChoiceWriter)


class ChunkStream(Generic[W]):
    """Renders one answer of one or more choices."""

    def __init__(
        self,
        head: dict[str, Any],
        choices: int,
        writer: Callable[[int, bytes, bytes], W],
        *,
        include_usage: bool,
        continuous_usage: bool,
        prompts: int = 1,
    ) -> None:
        """`writer`: makes the writer of a choice from its index and the bytes before and after each choice.
        `prompts`: each has the same number of choices, in order."""
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._prompts = prompts
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._choices = [writer(index, self._head, tail) for index in range(choices)]
        self._usages: dict[int, Usage] = {}

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """The next chunks of a choice. Deltas that came together are sent together, as one."""
        writer = self._choices[choice]
        if writer.plain is not None and len(events) == 1 and type(first := events[0]) is Delta and first.text:
            head, tail = writer.plain
            return head + _encode(first.text) + tail
        out: list[bytes] = []
        texts: list[str] = []
        tokens: list[TokenLogprob] = []
        for event in events:
            if isinstance(event, Delta):
                texts.append(event.text)
                if event.logprobs:
                    tokens += event.logprobs
                continue
            if texts:
                writer.delta("".join(texts), tokens, out)
                texts.clear()
                tokens = []
            if isinstance(event, BlockStart):
                writer.begin(event, out)
            elif isinstance(event, Dispatch):
                writer.dispatch(event)
            elif isinstance(event, BlockStop):
                writer.stop(event, out)
            elif isinstance(event, OutputTokens):
                writer.tokens(event, out)
            else:
                self._end(event, choice, out)
        if texts:
            writer.delta("".join(texts), tokens, out)
        return b"".join(out)

    def error(self, info: ErrorInfo) -> bytes:
        """The error as the last chunk; the SDKs raise it. No `[DONE]` follows."""
        return b"data: " + _encode({"error": openai_error(info)}) + b"\n\n"

    def usage(self) -> dict[str, Any] | None:
        """Token counts of the whole answer; None before every choice has ended."""
        if len(self._usages) < len(self._choices):
            return None
        return usage_of([self._usages[index] for index in range(len(self._choices))], self._prompts)

    def _end(self, event: TurnEvent, choice: int, out: list[bytes]) -> None:
        failure = failure_of(event)
        if failure is not None:
            out.append(self.error(failure))
            return
        if not isinstance(event, Finish):
            return
        self._usages[choice] = event.usage
        self._choices[choice].finish(event, out, usage_of([event.usage]) if self._continuous_usage else None)
        total = self.usage()
        if total is None:
            return
        if self._include_usage:
            out.append(self._head + b'],"usage":' + _encode(total) + b"}\n\n")
        out.append(DONE)


class ChunkCollector:
    """Collects an answer by merging the chunks of its stream."""

    def __init__(self, stream: ChunkStream[Any], opening: bytes, head: dict[str, Any], choices: int) -> None:
        self._stream = stream
        self._head = head
        self._choices: list[dict[str, Any]] = [{} for _ in range(choices)]
        self._take(opening)

    def start(self, prepared: Sequence[Prepared]) -> None:
        """Takes the ids of the prompts, where the request asked for them. The usage at the end has all counts."""
        if prepared[0].prompt_ids:
            for choice in self._choices:
                choice.setdefault("token_ids", [])
            self.prompts([unpack_ids(each.prompt_ids) for each in prepared])

    def prompts(self, prompts: Sequence[list[int]]) -> None:
        """Takes the ids of each choice's prompt. Those of a Chat answer are the same, and at its top."""
        self._head["prompt_token_ids"] = prompts[0]

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        """Takes the next events of a choice."""
        self._take(self._stream.events(events, choice))

    def body(self) -> bytes:
        """The document. Call it after every choice's Finish only."""
        usage = self._stream.usage()
        if usage is None:
            raise RuntimeError("the turn has not finished")
        return _encode({**self._head, "choices": [self.document(choice) for choice in self._choices], "usage": usage})

    def document(self, choice: dict[str, Any]) -> dict[str, Any]:
        """One choice of the document, from its merged chunks."""
        return choice

    def _take(self, stream: bytes) -> None:
        for chunk in payloads(stream):
            for choice in chunk.get("choices", ()):
                merge(self._choices[choice["index"]], choice)


def answer_head(id: str, object: str, reply: Reply, fingerprint: str | None) -> dict[str, Any]:
    """The members with which every chunk and the document begin."""
    return {
        "id": id,
        "object": object,
        "created": reply.created,
        "model": reply.model,
        "system_fingerprint": fingerprint,
    }


def reason_of(finish: Finish, calls: str | None = None) -> dict[str, Any]:
    """`finish_reason`; and, where a stop string ended the text, that string (vLLM's `stop_reason`).

    `calls`: the reason for complete calls, if there are any. Only a model that stopped by itself has it: one that was
    cut off after a call is `length`, as natively.
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


def usage_of(usages: Sequence[Usage], prompts: int = 1) -> dict[str, Any]:
    """Token counts of all choices. The choices of one prompt share it: it and its cached part count once."""
    each = len(usages) // prompts
    groups = [usages[at : at + each] for at in range(0, len(usages), each)]
    prompt = sum(group[0].prompt for group in groups)
    cached = sum(min(usage.cached for usage in group) for group in groups)
    return _usage(prompt, sum(usage.output for usage in usages), cached, sum(usage.reasoning for usage in usages))


def first_usage(prepared: Sequence[Prepared]) -> dict[str, Any]:
    """Token counts before decoding began, with the expected cached part; `prepared`: one for each prompt."""
    return _usage(sum(each.prompt_tokens for each in prepared), 0, sum(each.cached for each in prepared), 0)


def _usage(prompt: int, completion: int, cached: int, reasoning: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
