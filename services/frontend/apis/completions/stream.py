"""Turns side by side as chunks of Completions, or as one document: text, then a finish_reason, for each choice."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from schemas.events import BlockStart, Finish, OutputTokens, Prepared, TokenLogprob
from schemas.frames import unpack_ids
from services.frontend.apis.base import Reply
from services.frontend.apis.common.openai.chunks import (
    ChoiceWriter,
    ChunkCollector,
    ChunkStream,
    answer_head,
    first_usage,
    reason_of,
)

_encode = msgspec.json.Encoder().encode
_UNKNOWN = TokenLogprob("", 0.0, 0)
"""In place of a token whose log probability the engine did not report."""


class Shape(Struct, frozen=True):
    """The form of one answer."""

    echoes: list[str]
    """The text before each choice; there are as many as choices."""
    prompts: int = 1
    logprobs: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    fingerprint: str | None = None


class CompletionsStream(ChunkStream["_Choice"]):
    """Renders one answer."""

    def __init__(self, reply: Reply, shape: Shape) -> None:
        self._shape = shape
        super().__init__(
            answer_head(f"cmpl-{reply.turn}", "text_completion", reply, shape.fingerprint),
            len(shape.echoes),
            lambda index, head, tail: _Choice(index, head, tail, shape),
            include_usage=shape.include_usage,
            continuous_usage=shape.continuous_usage,
            prompts=shape.prompts,
        )

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """The prompts, where they are echoed."""
        usage = None
        if self._shape.continuous_usage:
            usage = first_usage(prepared[:: len(prepared) // self._shape.prompts])
        out = []
        for index, (choice, echo) in enumerate(zip(self._choices, self._shape.echoes, strict=True)):
            packed = prepared[index].prompt_ids if prepared else b""
            ids = {"prompt_token_ids": unpack_ids(packed)} if packed else {}
            if echo or ids:
                out.append(choice.chunk(echo, usage=usage, **ids))
        return b"".join(out)


class CompletionsCollector(ChunkCollector):
    """Collects one answer."""

    def __init__(self, reply: Reply, shape: Shape) -> None:
        head = answer_head(f"cmpl-{reply.turn}", "text_completion", reply, shape.fingerprint)
        stream = CompletionsStream(reply, replace(shape, continuous_usage=False))
        super().__init__(stream, stream.start(()), head, len(shape.echoes))

    def prompts(self, prompts: Sequence[list[int]]) -> None:
        """See `ChunkCollector.prompts`. Here each choice has its own."""
        for choice, ids in zip(self._choices, prompts, strict=True):
            choice["prompt_token_ids"] = ids


class _Choice(ChoiceWriter):
    """Writes the chunks of one choice."""

    def __init__(self, index: int, head: bytes, tail: bytes, shape: Shape) -> None:
        self._index = index
        self._head = head
        self._tail = tail
        self._logprobs = shape.logprobs
        self._length = self._base = len(shape.echoes[index])
        """Characters of the choice's text, and of that before its open block; counted for log probabilities only, by
        the tokens' own texts where these come with their ids."""
        if not shape.logprobs:
            self.plain = head + b'{"index":%d,"text":' % index, b',"logprobs":null,"finish_reason":null}' + tail

    def begin(self, event: BlockStart, out: list[bytes]) -> None:
        self._base = self._length

    def delta(self, text: str, tokens: list[TokenLogprob], out: list[bytes]) -> None:
        if self.plain is not None:
            if text:
                out.append(self.plain[0] + _encode(text) + self.plain[1])
            return
        if tokens:
            out.append(self.chunk(text, logprobs=self._token_logprobs(tokens)))
        elif text:
            out.append(self.chunk(text))
        self._length += len(text)

    def tokens(self, event: OutputTokens, out: list[bytes]) -> None:
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

    def finish(self, event: Finish, out: list[bytes], usage: dict[str, Any] | None) -> None:
        out.append(self.chunk("", usage=usage, **reason_of(event)))

    def chunk(self, text: str, *, usage: dict[str, Any] | None = None, **fields: Any) -> bytes:
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
