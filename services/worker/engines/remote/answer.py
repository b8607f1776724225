"""Judges the answer to one turn, which a server may have cut, repeated or mixed up. Pure."""

from collections.abc import Sequence

from schemas.events import UNKNOWN_WEIGHTS, FinishReason, WeightsSpan
from services.worker.engine import EngineDelta, EngineDied, EngineRequest
from services.worker.engines.arguments import guided_arguments
from services.worker.engines.remote.event_reader import (
    AnswerChunk,
    BadAnswer,
    Counts,
    LabeledSpan,
    TurnEnd,
    version_of,
)

NO_LIMIT = 1 << 32


class AnswerJudge:
    """Turns the chunks of one turn into deltas, in order.

    The terminal delta is held back until the end of the stream: vLLM reports what it found in its
    cache in an event of its own, the last one.
    """

    def __init__(
        self, request: EngineRequest, prompt: Sequence[int], vocab_size: int | None
    ) -> None:
        """`prompt`: the prompt that the server must have."""
        self._prompt = prompt
        self._prompt_tokens = len(prompt)
        self._awaits_prompt = bool(request.images)
        self._vocab_size = vocab_size or NO_LIMIT
        self._stop_ids = frozenset(request.stop_ids)
        self._is_guided = guided_arguments(request) is not None
        self._has_logprobs = request.sampling.logprobs is not None
        self._prefill_only = request.sampling.max_tokens == 0
        self._most = max(1, request.sampling.max_tokens or 0)
        self._total = 0
        self._has_cached = False
        self._last: EngineDelta | None = None
        """The terminal delta, once it is there."""

    def read(self, chunk: AnswerChunk) -> EngineDelta | None:
        """Returns the delta of a chunk; None if there is nothing in it, and from the end of the
        turn on. Raises BadAnswer."""
        if self._awaits_prompt:
            self._check_prompt(chunk.prompt_ids)
        self._count(chunk)
        self._check_ids(chunk.ids)
        if self._has_logprobs:
            self._check_logprobs(chunk)
        cached = self._cached(chunk)

        if self._last:
            if cached is not None:
                self._last.cached = cached
            return None
        delta = EngineDelta(cached=cached)
        if not self._prefill_only:
            delta.ids = chunk.ids
            if self._has_logprobs:
                delta.logprobs = chunk.logprobs
        if chunk.end:
            self._end(chunk.end, delta)
            if chunk.weights is not None and not self._prefill_only:
                ends = int(chunk.end.stop_id is not None)
                delta.spans = self._spans(chunk.weights, self._total - ends)
            return None
        if not delta.ids and delta.cached is None:
            return None
        return delta

    def end(self) -> EngineDelta:
        """Returns the terminal delta. Raises EngineDied where the stream was cut before the turn's
        end: the tokens so far are right, so that another attempt can continue it."""
        if self._last is None:
            raise EngineDied("the inference server's answer was cut in the middle of the turn")
        return self._last

    def _end(self, end: TurnEnd, delta: EngineDelta) -> None:
        """Makes the delta the terminal one."""
        self._last = delta
        delta.finish = end.reason
        if end.reason is FinishReason.LENGTH and self._total < self._most:
            raise BadAnswer(f"it stopped for the length after {self._total} of {self._most} tokens")
        if end.reason is not FinishReason.STOP:
            return
        if self._prefill_only:
            delta.finish = FinishReason.LENGTH
            return
        # A grammar ends with the tokenizer's own end token.
        if end.stop_id is None or not (self._is_guided or end.stop_id in self._stop_ids):
            raise BadAnswer(f"it stopped at token {end.stop_id}, not a stop token of the request")
        self._check_vocabulary([end.stop_id])
        delta.stop_id = end.stop_id
        delta.stop_logprobs = end.stop_logprobs

    def _count(self, chunk: AnswerChunk) -> None:
        new = len(chunk.ids)
        if chunk.end and chunk.end.stop_id is not None:
            new += 1
        if self._last and (new or chunk.end):
            raise BadAnswer("more follows the end of the turn")
        self._total += new
        if chunk.counts:
            self._check_counts(chunk.counts)
        if self._total > self._most:
            raise BadAnswer(f"it sent more than {self._most} tokens")

    def _spans(self, spans: Sequence[LabeledSpan], ids: int) -> list[WeightsSpan]:
        """The versions of all tokens; unknown if the server has not reported them all. `ids`: how
        many are not the end token."""
        ends = [0, *(span.end for span in spans)]
        if [span.start for span in spans] != ends[:-1] or ends[-1] != self._total:
            return [WeightsSpan(-ids, UNKNOWN_WEIGHTS)]
        return [
            WeightsSpan(span.start - ids, max(version_of(span.version), UNKNOWN_WEIGHTS))
            for span in spans
        ]

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        """Compares the prompt of a turn with images, which the first chunk must have."""
        self._awaits_prompt = False
        if list(prompt) != list(self._prompt):
            raise BadAnswer("it expands the images to other tokens than the model's processor")

    def _check_counts(self, counts: Counts) -> None:
        if counts.prompt != self._prompt_tokens:
            raise BadAnswer(
                f"it counts {counts.prompt} tokens in a prompt of {self._prompt_tokens}"
            )
        if counts.output != self._total:
            raise BadAnswer(
                f"{self._total} tokens have arrived, but it has sent {counts.output}: "
                "parts are lost, repeated or in another order"
            )

    def _cached(self, chunk: AnswerChunk) -> int | None:
        """The cached tokens that a chunk reports first."""
        cached = chunk.cached
        if cached is None or self._has_cached:
            return None
        if not 0 <= cached <= self._prompt_tokens:
            raise BadAnswer(
                f"it found {cached} tokens of a prompt of {self._prompt_tokens} in its cache"
            )
        self._has_cached = True
        return cached

    def _check_ids(self, ids: Sequence[int]) -> None:
        self._check_vocabulary(ids)
        if not self._stop_ids.isdisjoint(ids):
            raise BadAnswer("the turn goes on after a stop token")

    def _check_vocabulary(self, ids: Sequence[int]) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < self._vocab_size:
            raise BadAnswer(f"a token is outside the vocabulary of {self._vocab_size}")

    def _check_logprobs(self, chunk: AnswerChunk) -> None:
        rows = list(chunk.logprobs or ())
        tokens = list(chunk.ids)
        end = chunk.end
        if end is not None and end.stop_id is not None:
            rows.append(end.stop_logprobs or [])
            tokens.append(end.stop_id)
        if [pairs[0][0] if pairs else None for pairs in rows] != tokens:
            raise BadAnswer("log probabilities are missing, or belong to other tokens")
        for pairs in rows:
            self._check_vocabulary([token for token, _ in pairs])
