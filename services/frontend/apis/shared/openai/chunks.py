"""Streams and documents of Chat Completions and Completions: what is the same in both.

A chunk is spliced from bytes that were made once and the encoded text. A document is its own stream, merged.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from schemas.errors import ErrorInfo
from schemas.events import Finish, FinishReason, Prepared, TokenLogprob, TopLogprob, TurnEvent, Usage, failure_of
from services import __version__
from services.frontend.apis.shared.answers.documents import merge
from services.frontend.apis.shared.answers.turn_renderer import TurnRenderer
from services.frontend.apis.shared.shared_errors import openai_error
from services.frontend.turns.interfaces import Reply

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


class ChunkShape(Struct, frozen=True, kw_only=True):
    """The form of an answer in both APIs."""

    logprobs: bool = False
    include_usage: bool = False
    """The stream ends with the token counts."""
    continuous_usage: bool = False
    """Other chunks carry the token counts, too, once they are known."""
    fingerprint: str | None = None

    def whole(self) -> Self:
        """The form of a stream that is merged to a document."""
        return replace(self, include_usage=True, continuous_usage=False)


W = TypeVar("W", bound=TurnRenderer)


class ChunkStream(Generic[W]):
    """Renders one answer of one or more choices."""

    def __init__(
        self,
        head: dict[str, Any],
        choices: int,
        writer: Callable[[int, bytes, bytes], W],
        shape: ChunkShape,
        prompts: int = 1,
    ) -> None:
        """`writer`: makes the renderer of a choice from its index and the bytes before and after each choice.
        `prompts`: each has the same number of choices, in order."""
        self._include_usage = shape.include_usage
        self._prompts = prompts
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        tail = b'],"usage":null}\n\n' if shape.include_usage else b"]}\n\n"
        self._choices = [writer(index, self._head, tail) for index in range(choices)]
        self._usages: dict[int, Usage] = {}

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """See `Renderer.events`."""
        out = self._choices[choice].events(events)
        last = events[-1]
        if type(last) is not Finish or failure_of(last) is not None:
            return out
        self._usages[choice] = last.usage
        if len(self._usages) < len(self._choices):
            return out
        if self._include_usage:
            usages = [self._usages[index] for index in range(len(self._choices))]
            out += self._head + b'],"usage":' + _encode(usage_of(usages, self._prompts)) + b"}\n\n"
        return out + DONE

    def error(self, info: ErrorInfo) -> bytes:
        """See `Renderer.error`."""
        return error_chunk(info)


def error_chunk(info: ErrorInfo) -> bytes:
    """An error as the last chunk; the SDKs raise it. No `[DONE]` follows."""
    return b"data: " + _encode({"error": openai_error(info)}) + b"\n\n"


def merged_chunks(object: str, chunks: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """The document of a stream whose last chunk has the token counts."""
    document: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk.pop("choices"):
            held = choices.setdefault(choice["index"], {})
            merge(held, choice)
            if "prompt_token_ids" in choice or "prompt_token_ids" in chunk:
                held.setdefault("token_ids", [])
        document |= chunk
    usage = document.pop("usage")
    return {**document, "object": object, "choices": [choices[index] for index in sorted(choices)], "usage": usage}


def answer_head(id: str, object: str, reply: Reply, fingerprint: str | None) -> dict[str, Any]:
    """The members with which every chunk begins."""
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


def usage_of(usages: Sequence[Usage], prompts: int = 1) -> UsageAnswer:
    """Token counts of all choices. The choices of one prompt share it: it and its cached part count once."""
    each = len(usages) // prompts
    groups = [usages[at : at + each] for at in range(0, len(usages), each)]
    prompt = sum(group[0].prompt for group in groups)
    cached = sum(min(usage.cached for usage in group) for group in groups)
    return _usage(prompt, sum(usage.output for usage in usages), cached, sum(usage.reasoning for usage in usages))


def first_usage(prepared: Sequence[Prepared]) -> UsageAnswer:
    """Token counts before decoding began, with the expected cached part; `prepared`: one for each prompt."""
    return _usage(sum(each.prompt_tokens for each in prepared), 0, sum(each.cached for each in prepared), 0)


def _usage(prompt: int, completion: int, cached: int, reasoning: int) -> UsageAnswer:
    return UsageAnswer(
        prompt, completion, prompt + completion, {"cached_tokens": cached}, {"reasoning_tokens": reasoning}
    )
