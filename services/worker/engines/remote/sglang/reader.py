"""Reads the events of SGLang's `POST /generate`.

Source: `srt/managers/tokenizer_manager.py` of 0.5.20 and 0.5.23: `_handle_batch_output` makes
`output_ids` and `meta_info`, `_handle_abort_req` the event of an aborted request, which counts no
prompt and may repeat an id.
"""

import msgspec
from msgspec import Raw, Struct
from typing_extensions import override

from schemas.errors import EngineFailed
from schemas.events import FinishReason
from services.worker.engines.arguments import chosen_then
from services.worker.engines.remote.event_reader import (
    NO_EXPERTS,
    AnswerChunk,
    BadAnswer,
    Counts,
    EventReader,
    LabeledSpan,
    ReportedError,
    TurnEnd,
)
from services.worker.engines.remote.http import HttpRefusal


class _SglangLogprob(Struct, array_like=True):
    logprob: float | None
    """None: not a number in JSON, so that the token is impossible."""
    token_id: int


class _Finish(Struct):
    type: str
    matched: int | str | None = None
    message: str | None = None
    status_code: int | None = None


class _Meta(Struct):
    id: str
    finish_reason: _Finish | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    output_token_logprobs: list[_SglangLogprob] | None = None
    output_top_logprobs: list[list[_SglangLogprob] | None] | None = None
    weight_versions: list[LabeledSpan] | None = None
    routed_experts: Raw = NO_EXPERTS


class _SglangEvent(Struct):
    output_ids: list[int] | None = None
    meta_info: _Meta | None = None
    error: ReportedError | None = None


_decoder = msgspec.json.Decoder(_SglangEvent)


class SglangReader(EventReader[_SglangEvent]):
    """Reads events of both forms: with all ids of the turn so far, and with new ones only
    (`--incremental-streaming-output`)."""

    def __init__(self, request_id: str, top: int | None) -> None:
        """`top`: the most log probabilities of other tokens than the chosen one."""
        super().__init__(_decoder)
        self._id = request_id
        self._top = top or 0
        self._ids: list[int] = []
        self._repeats: bool | None = None
        """Whether each event has all ids; None: not known before the second event with ids."""

    @override
    def chunk(self, event: _SglangEvent) -> AnswerChunk:
        if event.error is not None:
            raise HttpRefusal(event.error.code, event.error.message)
        meta = event.meta_info
        if meta is None:
            raise BadAnswer("the counts of an event are missing")
        if meta.id != self._id:
            raise BadAnswer("an event belongs to another request")
        finish = meta.finish_reason
        if finish is not None and finish.type == "abort":
            # Not for this turn's own abort: the rest of that answer is not read. Another worker,
            # or this one later, can continue where the server gives no reason.
            raise HttpRefusal(finish.status_code or 503, finish.message or "it aborted the turn")
        return self._read_tokens(event.output_ids, meta)

    def _read_tokens(self, ids: list[int] | None, meta: _Meta) -> AnswerChunk:
        if ids is None or meta.prompt_tokens is None or meta.completion_tokens is None:
            raise BadAnswer("token ids or their counts are missing")
        new = self._new_ids(ids, meta.completion_tokens)
        counts = Counts(meta.prompt_tokens, meta.completion_tokens)
        chunk = AnswerChunk(new, counts=counts, cached=meta.cached_tokens)
        if meta.output_token_logprobs is not None:
            chunk.logprobs = self._logprobs(meta, len(new))
        if meta.finish_reason is not None:
            chunk.weights = meta.weight_versions
            chunk.experts = meta.routed_experts
            _end_turn(meta.finish_reason, chunk)
        return chunk

    def _new_ids(self, ids: list[int], total: int) -> list[int]:
        """The ids of an event that are new. `total`: the server's own count of all, which
        distinguishes the two forms; the judge compares it with what has arrived."""
        seen = len(self._ids)
        if seen and self._repeats is None:
            self._repeats = len(ids) == total
        if self._repeats:
            if len(ids) != total or ids[:seen] != self._ids:
                raise BadAnswer("it changed or dropped tokens that it had sent before")
            ids = ids[seen:]
        self._ids += ids
        return list(ids)

    def _logprobs(self, meta: _Meta, new: int) -> list[list[tuple[int, float]]]:
        """For each new id: the chosen token first, then the likeliest others."""
        chosen = meta.output_token_logprobs or []
        rows = meta.output_top_logprobs or [None] * len(chosen)
        if len(rows) != len(chosen) or len(chosen) < new:
            raise BadAnswer("log probabilities are missing")
        start = len(chosen) - new
        return [
            self._pairs(one, row) for one, row in zip(chosen[start:], rows[start:], strict=True)
        ]

    def _pairs(
        self, chosen: _SglangLogprob, row: list[_SglangLogprob] | None
    ) -> list[tuple[int, float]]:
        return chosen_then(_pair(chosen), [_pair(other) for other in row or ()], self._top)


def _end_turn(finish: _Finish, chunk: AnswerChunk) -> None:
    """Ends the chunk's turn. A token at which it stopped is the chunk's last one."""
    if finish.type == "length":
        chunk.end = TurnEnd(FinishReason.LENGTH)
        return
    if finish.type != "stop" or not isinstance(finish.matched, int):
        raise EngineFailed(f"SGLang ended the turn: {finish.type} {finish.matched or ''}".rstrip())
    if chunk.ids[-1:] != [finish.matched]:
        raise BadAnswer(f"it stopped at token {finish.matched}, which is not the last one")
    chunk.end_at_last_token()


def _pair(entry: _SglangLogprob) -> tuple[int, float]:
    return entry.token_id, float("-inf") if entry.logprob is None else entry.logprob
