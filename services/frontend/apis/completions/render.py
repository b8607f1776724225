"""Renders turns, one for each choice, as chunks of Completions, and folds the chunks to one
document."""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from schemas.events import BlockStart, Finish, OutputTokens, Prepared, TokenLogprob
from schemas.token_ids import unpack_ids
from services.frontend.apis.completions import wire
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
    plain_chunk,
    reason_of,
    usage_of,
)
from services.frontend.turns.interfaces import RenderInfo

_UNKNOWN = TokenLogprob("", 0.0, 0)
"""Stands for a token without a log probability from the engine."""


class CompletionsShape(ChunkShape, frozen=True):
    """The form of one answer."""

    echoes: list[str]
    """The text before each choice, one for each."""
    prompts: int = 1


def completions_stream(answer: RenderInfo, shape: CompletionsShape) -> ChunkStream:
    """The renderer of one answer."""
    head = chunk_head(f"cmpl-{answer.turn}", "text_completion", answer, shape)
    choices = [_CompletionsChoice(head, shape, index) for index in range(len(shape.echoes))]
    return ChunkStream(head, choices, shape, shape.prompts)


class CompletionsCollector(ChunkCollector[wire.Choice]):
    """Collects one answer."""

    def _open(self, choice: wire.CompletionsChunkChoice, chunk: Chunk) -> wire.Choice:
        ids: list[int] | UnsetType = UNSET if choice.prompt_token_ids is UNSET else []
        return wire.Choice(
            choice.index, "", None, "stop", prompt_token_ids=choice.prompt_token_ids, token_ids=ids
        )

    def _add(self, answer: wire.Choice, choice: wire.CompletionsChunkChoice) -> None:
        answer.text += choice.text

    def _document(self, choices: list[wire.Choice], usage: UsageAnswer) -> wire.CompletionsAnswer:
        head = self._head
        return wire.CompletionsAnswer(
            head.id,
            "text_completion",
            head.created,
            head.model,
            head.system_fingerprint,
            choices,
            usage,
        )


class _CompletionsChoice(ChoiceRenderer):
    """Renders the chunks of one choice."""

    def __init__(self, head: Chunk, shape: CompletionsShape, index: int) -> None:
        self._head = head
        self._index = index
        self._echo = shape.echoes[index]
        self._continuous_usage = shape.continuous_usage
        self._length = self._base = len(self._echo)
        """The length in characters of the choice's text, and of the text before its open block.
        Counted only for log probabilities; with token ids, from the tokens' texts."""
        if not shape.logprobs:
            self.plain = plain_chunk(head, wire.CompletionsChunkChoice(index, ""))

    def opening(self, prepared: Prepared, usage: UsageAnswer | None) -> Sequence[Chunk]:
        """The chunk with the echoed prompt and the prompt's ids, if either is requested."""
        ids: dict[str, Any] = {}
        if prepared.prompt_ids:
            ids = {"prompt_token_ids": unpack_ids(prepared.prompt_ids)}
        if not self._echo and not ids:
            return []
        return [self._chunk(self._echo, usage=usage, **ids)]

    def _start(self, event: BlockStart, out: Chunks) -> None:
        self._base = self._length

    def _delta(self, text: str, tokens: list[TokenLogprob], out: Chunks) -> None:
        if tokens and self.plain is None:
            out.append(self._chunk(text, logprobs=self._token_logprobs(tokens)))
        elif text:
            out.append(self._chunk(text))
        if self.plain is None:
            self._length += len(text)

    def _tokens(self, event: OutputTokens, out: Chunks) -> None:
        logprobs = None
        if event.logprobs is not None:
            placed = []
            for token in event.logprobs:
                placed.append(replace(token or _UNKNOWN, at=self._length - self._base))
                self._length += len(placed[-1].token)
            logprobs = self._token_logprobs(placed)
            for index, token in enumerate(event.logprobs):
                if token is None:
                    logprobs["token_logprobs"][index] = None
                    logprobs["top_logprobs"][index] = None
        out.append(self._chunk("", token_ids=event.ids, logprobs=logprobs))

    def _finish(self, event: Finish, out: Chunks) -> None:
        usage = usage_of(event.usage) if self._continuous_usage else None
        out.append(self._chunk("", usage=usage, **reason_of(event)))

    def _chunk(self, text: str, *, usage: UsageAnswer | None = None, **fields: Any) -> Chunk:
        chunk = replace(
            self._head, choices=[wire.CompletionsChunkChoice(self._index, text, **fields)]
        )
        if usage is not None:
            chunk.usage = usage
        return chunk

    def _token_logprobs(self, tokens: Sequence[TokenLogprob]) -> Logprobs:
        """Adds the chosen token to `top_logprobs`, so there may be one more than requested, as in
        the native API."""
        return {
            "text_offset": [self._base + token.at for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "tokens": [token.token for token in tokens],
            "top_logprobs": list(map(_by_token, tokens)),
        }


def _by_token(token: TokenLogprob) -> dict[str, float]:
    """The log probabilities of a token and of those that were most likely in its place."""
    return {token.token: token.logprob, **{top.token: top.logprob for top in token.top}}
