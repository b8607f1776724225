"""Renders turns side by side as chunks of Completions, or as one document: text and a finish_reason for each choice."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from schemas.errors import ErrorInfo
from schemas.events import BlockStart, Finish, OutputTokens, Prepared, TokenLogprob
from schemas.frames import unpack_ids
from services.frontend.apis.shared.answers.documents import StreamCollector
from services.frontend.apis.shared.answers.turn_renderer import TurnRenderer
from services.frontend.apis.shared.openai.chunks import (
    ChunkShape,
    ChunkStream,
    UsageAnswer,
    answer_head,
    error_chunk,
    first_usage,
    merged_chunks,
    reason_of,
    usage_of,
)
from services.frontend.turns.interfaces import Reply

_encode = msgspec.json.Encoder().encode
_UNKNOWN = TokenLogprob("", 0.0, 0)
"""In place of a token whose log probability the engine did not report."""


class Shape(ChunkShape, frozen=True):
    """The form of one answer."""

    echoes: list[str]
    """The text before each choice; there are as many as choices."""
    prompts: int = 1


class CompletionsStream(ChunkStream["_Choice"]):
    """Renders one answer."""

    def __init__(self, reply: Reply, shape: Shape) -> None:
        self._shape = shape
        head = answer_head(f"cmpl-{reply.turn}", "text_completion", reply, shape.fingerprint)
        super().__init__(head, len(shape.echoes), partial(_Choice, shape), shape, shape.prompts)

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """The prompts, where they are echoed."""
        usage = None
        if self._shape.continuous_usage:
            usage = first_usage(prepared[:: len(prepared) // self._shape.prompts])
        out = []
        for choice, echo, each in zip(self._choices, self._shape.echoes, prepared, strict=True):
            ids = {"prompt_token_ids": unpack_ids(each.prompt_ids)} if each.prompt_ids else {}
            if echo or ids:
                out.append(choice.chunk(echo, usage=usage, **ids))
        return b"".join(out)


def completions_collector(reply: Reply, shape: Shape) -> StreamCollector:
    """Collects one answer."""
    return StreamCollector(CompletionsStream(reply, shape.whole()), partial(merged_chunks, "text_completion"))


class _Choice(TurnRenderer):
    """Renders the chunks of one choice."""

    def __init__(self, shape: Shape, index: int, head: bytes, tail: bytes) -> None:
        self._index = index
        self._head = head
        self._tail = tail
        self._continuous_usage = shape.continuous_usage
        self._length = self._base = len(shape.echoes[index])
        """Characters of the choice's text, and of that before its open block; counted for log probabilities only, by
        the tokens' own texts where these come with their ids."""
        if not shape.logprobs:
            self.plain = head + b'{"index":%d,"text":' % index, b',"logprobs":null,"finish_reason":null}' + tail

    def _start(self, event: BlockStart, out: list[bytes]) -> None:
        self._base = self._length

    def _delta(self, text: str, tokens: list[TokenLogprob], out: list[bytes]) -> None:
        if self.plain is not None:
            if text:
                out.append(self.plain[0] + _encode(text) + self.plain[1])
            return
        if tokens:
            out.append(self.chunk(text, logprobs=self._token_logprobs(tokens)))
        elif text:
            out.append(self.chunk(text))
        self._length += len(text)

    def _tokens(self, event: OutputTokens, out: list[bytes]) -> None:
        logprobs = None
        if event.logprobs is not None:
            placed = []
            for token in event.logprobs:
                placed.append(replace(token or _UNKNOWN, at=self._length - self._base))
                self._length += len(placed[-1].token)
            logprobs = self._token_logprobs(placed)
            for index, token in enumerate(event.logprobs):
                if token is None:
                    logprobs["token_logprobs"][index] = logprobs["top_logprobs"][index] = None
        out.append(self.chunk("", token_ids=event.ids, logprobs=logprobs))

    def error(self, info: ErrorInfo) -> bytes:
        return error_chunk(info)

    def _finish(self, event: Finish, out: list[bytes]) -> None:
        usage = usage_of([event.usage]) if self._continuous_usage else None
        out.append(self.chunk("", usage=usage, **reason_of(event)))

    def chunk(self, text: str, *, usage: UsageAnswer | None = None, **fields: Any) -> bytes:
        document = {"index": self._index, "text": text, "logprobs": None, "finish_reason": None, **fields}
        tail = self._tail if usage is None else b'],"usage":' + _encode(usage) + b"}\n\n"
        return self._head + _encode(document) + tail

    def _token_logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The chosen token is always in `top_logprobs`, so there may be one more than requested, as natively."""
        return {
            "text_offset": [self._base + token.at for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "tokens": [token.token for token in tokens],
            "top_logprobs": [
                {token.token: token.logprob, **{top.token: top.logprob for top in token.top}} for token in tokens
            ],
        }
