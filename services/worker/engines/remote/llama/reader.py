"""Reads the events of llama-server's `POST /completion`.

Source: `tools/server/server-task.cpp` of llama.cpp b11434.

- The server stops at the end tokens of its GGUF file, and knows no others. So the reader ends a
  turn at its first stop id and closes the connection, which frees the slot; what was decoded after
  it is dropped.
- A stream leaves out each token that ends inside a character, and sends it with the character's
  last token (`unsent_tokens.py`). So the server may decode `SPARE_TOKENS` more than the turn's
  limit, at which the reader ends the turn: a token that was not sent at a limit of the server's own
  could be any.
"""

import msgspec
from msgspec import Struct
from typing_extensions import override

from schemas.events import FinishReason
from services.worker.engine import LOWEST_LOGPROB, EngineRequest
from services.worker.engines.arguments import chosen_then, guided_arguments
from services.worker.engines.remote.event_reader import (
    AnswerChunk,
    BadAnswer,
    Counts,
    EventReader,
    ReportedError,
    TurnEnd,
)
from services.worker.engines.remote.http import HttpRefusal
from services.worker.engines.remote.llama.unsent_tokens import UnsentTokens

SPARE_TOKENS = 3
"""The most tokens, of one byte each, that end a character after its first one."""


class _LlamaLogprob(Struct):
    id: int
    logprob: float


class _LlamaToken(_LlamaLogprob):
    top_logprobs: list[_LlamaLogprob] = []


class _Progress(Struct):
    total: int
    cache: int


class _LlamaEvent(Struct):
    tokens: list[int] | None = None
    content: str = ""
    stop: bool = False
    stop_type: str = ""
    stopping_word: str = ""
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    prompt_progress: _Progress | None = None
    completion_probabilities: list[_LlamaToken] | None = None
    error: ReportedError | None = None


class ReaderVocabulary(Struct, frozen=True):
    """The facts about the model that readers need."""

    unsent: UnsentTokens
    eos_ids: frozenset[int]


_decoder = msgspec.json.Decoder(_LlamaEvent)


class LlamaReader(EventReader[_LlamaEvent]):
    """Reads the events of one turn."""

    def __init__(self, request: EngineRequest, vocabulary: ReaderVocabulary) -> None:
        super().__init__(_decoder)
        self._end_ids = frozenset(request.stop_ids)
        if guided_arguments(request) is not None:
            self._end_ids |= vocabulary.eos_ids
        self._limit = most_tokens(request)
        self._top = request.sampling.logprobs
        self._unsent = vocabulary.unsent
        self._total = 0

    @override
    def chunk(self, event: _LlamaEvent) -> AnswerChunk:
        if event.error is not None:
            raise HttpRefusal(event.error.code, event.error.message)
        if event.prompt_progress is not None:
            total, cached = event.prompt_progress.total, event.prompt_progress.cache
            return AnswerChunk(counts=Counts(total, 0), cached=cached)
        if event.tokens is None or event.tokens_predicted is None or event.tokens_evaluated is None:
            raise BadAnswer("token ids or their numbers are missing")
        if event.stop:
            raise _end_error(event)
        chunk = self._read_tokens(event, event.tokens, event.tokens_predicted)
        if not chunk.closes:
            chunk.counts = Counts(event.tokens_evaluated, self._total)
        return chunk

    def _read_tokens(self, event: _LlamaEvent, tokens: list[int], predicted: int) -> AnswerChunk:
        """The tokens of an event, with those before them that were not sent."""
        unsent = predicted - self._total - len(tokens)
        logprobs = None
        if self._top is not None:
            logprobs = [self._pairs(scored) for scored in event.completion_probabilities or ()]
        if unsent > 0 and len(tokens) == 1:
            if logprobs is not None:
                raise BadAnswer(f"the log probabilities of {unsent} tokens are not sent")
            tokens = [*self._unsent.find(event.content, tokens[0], unsent), *tokens]
        elif unsent:
            raise BadAnswer(f"its count grows by {unsent + len(tokens)} with {len(tokens)} tokens")
        left = self._limit - self._total
        self._total = predicted
        for place, token in enumerate(tokens[:left]):
            if token in self._end_ids:
                return _cut(tokens, logprobs, place)
        if len(tokens) < left:
            return AnswerChunk(tokens, logprobs)
        return AnswerChunk(tokens[:left], logprobs, end=TurnEnd(FinishReason.LENGTH), closes=True)

    def _pairs(self, scored: _LlamaToken) -> list[tuple[int, float]]:
        return chosen_then(
            _pair(scored), [_pair(other) for other in scored.top_logprobs], self._top
        )


def most_tokens(request: EngineRequest) -> int:
    """The most tokens of a turn; the server decodes one after a prefill, too."""
    return max(1, request.sampling.max_tokens or 0)


def _end_error(event: _LlamaEvent) -> BadAnswer:
    """The error of a turn that the server ended: the reader ends each before."""
    if event.stop_type == "word":
        return BadAnswer(f"it stopped at its own {event.stopping_word!r} (--reverse-prompt)")
    if event.stop_type == "limit":
        return BadAnswer(f"it stopped after {event.tokens_predicted} tokens, not all of which came")
    return BadAnswer(f"it stopped ({event.stop_type}) without a stop token of the request")


def _cut(
    tokens: list[int], logprobs: list[list[tuple[int, float]]] | None, place: int
) -> AnswerChunk:
    """The tokens up to the stop id at `place`, which ends the turn."""
    end = TurnEnd(FinishReason.STOP, tokens[place], logprobs[place] if logprobs else None)
    return AnswerChunk(
        tokens[:place], None if logprobs is None else logprobs[:place], end=end, closes=True
    )


def _pair(entry: _LlamaLogprob) -> tuple[int, float]:
    return entry.id, max(entry.logprob, LOWEST_LOGPROB)
