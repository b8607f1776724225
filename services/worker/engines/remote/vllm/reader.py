"""Reads the events of `POST /inference/v1/generate`.

Source: `vllm/entrypoints/scale_out/token_in_token_out/protocol.py` and `serving.py` of 0.32.0.
"""

import msgspec
from msgspec import Raw, Struct
from typing_extensions import override

from schemas.errors import EngineFailed
from schemas.events import FinishReason
from services.worker.engine import EngineDied
from services.worker.engines.arguments import chosen_then
from services.worker.engines.remote.event_reader import (
    NO_EXPERTS,
    AnswerChunk,
    BadAnswer,
    Counts,
    EventReader,
    LabeledSpan,
    TurnEnd,
)
from services.worker.engines.remote.http import HttpRefusal

_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
_ENDED_BY_SERVER = frozenset(("abort", "error"))
"""Finish reasons of a turn that was not closed here (`vllm/v1/engine/__init__.py`, `FinishReason`):
the server was paused or shuts down, or failed internally. The turn can be continued."""


class _VllmLogprob(Struct):
    token_id: int
    logprob: float


class _VllmToken(_VllmLogprob):
    top_logprobs: list[_VllmLogprob] = []


class _LogProbs(Struct):
    content: list[_VllmToken] | None = None


class _Choice(Struct):
    index: int
    token_ids: list[int] | None = None
    logprobs: _LogProbs | None = None
    finish_reason: str | None = None
    weight_versions: list[LabeledSpan] | None = None
    routed_experts: Raw = NO_EXPERTS


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Error(Struct):
    message: str
    code: int | str | None = None


class _VllmEvent(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: _Error | None = None
    prompt_token_ids: list[int] = []


_decoder = msgspec.json.Decoder(_VllmEvent)


class VllmReader(EventReader[_VllmEvent]):
    """Reads the events of one turn."""

    def __init__(self, top: int | None) -> None:
        """`top`: the most log probabilities of other tokens than the chosen one."""
        super().__init__(_decoder)
        self._top = top or 0

    @override
    def chunk(self, event: _VllmEvent) -> AnswerChunk:
        if event.error is not None:
            raise _error(event.error)
        chunk = AnswerChunk(prompt_ids=event.prompt_token_ids)
        usage = event.usage
        if usage is not None:
            chunk.counts = Counts(usage.prompt_tokens, usage.completion_tokens)
            if usage.prompt_tokens_details is not None:
                chunk.cached = usage.prompt_tokens_details.cached_tokens
        if event.choices:
            if len(event.choices) != 1 or event.choices[0].index != 0:
                raise BadAnswer("it has more than one choice")
            self._read_choice(event.choices[0], chunk)
        return chunk

    def _read_choice(self, choice: _Choice, chunk: AnswerChunk) -> None:
        if choice.token_ids is None:
            raise BadAnswer("token ids are missing")
        if chunk.counts is None:
            raise BadAnswer("tokens are not counted, so that lost ones would not show")
        chunk.ids = choice.token_ids
        if choice.logprobs is not None and choice.logprobs.content is not None:
            chunk.logprobs = [self._pairs(content) for content in choice.logprobs.content]
        if choice.finish_reason is not None:
            chunk.weights = choice.weight_versions
            chunk.experts = choice.routed_experts
            self._end(choice.finish_reason, chunk)

    def _end(self, reason: str, chunk: AnswerChunk) -> None:
        """Ends the chunk's turn. A token at which it stopped is the chunk's last one."""
        if reason in _ENDED_BY_SERVER:
            raise EngineDied(f"vLLM ended the turn: {reason}")
        if reason not in _FINISH:
            raise EngineFailed(f"vLLM ended the turn: {reason}")
        if reason == "stop" and chunk.ids:
            chunk.end_at_last_token()
        else:
            chunk.end = TurnEnd(_FINISH[reason])

    def _pairs(self, content: _VllmToken) -> list[tuple[int, float]]:
        others = [(other.token_id, other.logprob) for other in content.top_logprobs]
        return chosen_then((content.token_id, content.logprob), others, self._top)


def _error(error: _Error) -> Exception:
    """The error of a stream, which has the status that a refusal would have had. One of the server
    itself, 500 or more, does not lie with the turn, which can be continued
    (`vllm/entrypoints/serve/exception_handling/error_response.py`)."""
    message = f"the inference server failed: {error.message}"
    if not isinstance(error.code, int):
        return EngineFailed(message)
    return EngineDied(message) if error.code >= 500 else HttpRefusal(error.code, error.message)
