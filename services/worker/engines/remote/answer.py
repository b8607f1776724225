"""Judges the answer to one turn, which a server may have cut, repeated or mixed up. Pure."""

from collections.abc import Sequence

from schemas.events import FinishReason
from services.worker.engine import EngineDelta, EngineRequest
from services.worker.engines.remote.dialect import BadAnswer, Chunk


class AnswerJudge:
    """Turns the chunks of one turn into deltas, in order.

    The terminal delta is held back until the end of the stream: some servers report what they found
    in their cache behind it.
    """

    def __init__(self, request: EngineRequest, prompt_tokens: int, vocab_size: int | None) -> None:
        """`prompt_tokens`: how many the server was sent."""
        self._request = request
        self._prompt_tokens = prompt_tokens
        self._vocab_size = vocab_size
        self._stop_ids = frozenset(request.stop_ids)
        self._may_end_freely = request.guided is not None or bool(request.grammar)
        self._prefill_only = request.sampling.max_tokens == 0
        self._most = max(1, request.sampling.max_tokens or 0)
        self._total = 0
        self._end: EngineDelta | None = None

    def read(self, chunk: Chunk) -> EngineDelta | None:
        """Returns the delta of a chunk; None for one without news. Raises BadAnswer."""
        self._check_prompt(chunk)
        self._count(chunk)
        self._check_ids(chunk.ids)
        self._check_logprobs(chunk.ids, chunk.logprobs)
        delta = EngineDelta(
            ids=chunk.ids,
            logprobs=chunk.logprobs if chunk.ids else None,
            cached=chunk.cached,
        )
        if self._prefill_only:
            delta.ids, delta.logprobs = [], None
        if self._end is not None:
            self._end.cached = delta.cached if self._end.cached is None else self._end.cached
            return None
        if chunk.finish is None:
            return delta if delta.ids or delta.cached is not None else None
        self._finish(chunk, delta)
        self._end = delta
        return None

    def end(self) -> EngineDelta:
        """Returns the terminal delta. Raises BadAnswer where the stream ended without a reason."""
        if self._end is None:
            raise BadAnswer("the stream ended in the middle of the turn")
        return self._end

    def _finish(self, chunk: Chunk, delta: EngineDelta) -> None:
        delta.finish = chunk.finish
        if chunk.finish is not FinishReason.STOP:
            if chunk.finish is FinishReason.LENGTH and self._total < self._most:
                raise BadAnswer(
                    f"it stopped for the length after {self._total} of {self._most} tokens"
                )
            return
        if self._prefill_only:
            delta.finish = FinishReason.LENGTH
            return
        if chunk.stop_id is None:
            raise BadAnswer("it stopped without a stop token")
        if chunk.stop_id not in self._stop_ids and not self._may_end_freely:
            raise BadAnswer(f"it stopped at token {chunk.stop_id}, which is no stop token")
        delta.stop_id = chunk.stop_id
        delta.stop_logprobs = chunk.stop_logprobs

    def _check_prompt(self, chunk: Chunk) -> None:
        length = self._prompt_tokens
        if chunk.prompt is not None and chunk.prompt != length:
            raise BadAnswer(f"it counts {chunk.prompt} tokens in a prompt of {length}")
        if chunk.cached is not None and not 0 <= chunk.cached <= length:
            raise BadAnswer(f"it found {chunk.cached} tokens of a prompt of {length} in its cache")

    def _count(self, chunk: Chunk) -> None:
        """Counts the tokens. A server's own count shows chunks that are lost, repeated or in
        another order."""
        new = len(chunk.ids) + (chunk.stop_id is not None)
        if new and self._end is not None:
            raise BadAnswer("tokens follow the end of the turn")
        self._total += new
        if chunk.total is not None and chunk.total != self._total:
            raise BadAnswer(
                f"{self._total} tokens have arrived, but it has sent {chunk.total}: "
                "parts are lost, repeated or in another order"
            )
        if self._total > self._most:
            raise BadAnswer(f"it sent more than {self._most} tokens")

    def _check_ids(self, ids: Sequence[int]) -> None:
        if not ids:
            return
        if self._vocab_size is not None and max(ids) >= self._vocab_size or min(ids) < 0:
            raise BadAnswer(f"a token is outside the vocabulary: {max(ids)}")
        if not self._stop_ids.isdisjoint(ids):
            raise BadAnswer("the turn goes on behind a stop token")

    def _check_logprobs(
        self, ids: Sequence[int], logprobs: Sequence[Sequence[tuple[int, float]]] | None
    ) -> None:
        if self._request.sampling.logprobs is None or not ids:
            return
        if logprobs is None:
            raise BadAnswer("log probabilities are missing")
        if [pairs[0][0] if pairs else None for pairs in logprobs] != list(ids):
            raise BadAnswer("the log probabilities belong to other tokens")
