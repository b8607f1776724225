"""The output tokens of a turn, for a request with `return_token_ids`. Pure."""

from collections.abc import Iterable, Sequence

from schemas.events import OutputTokens, TokenLogprob, WeightsSpan, spans_between

TOKEN_BYTES = 8
"""Bytes of a token id and its comma in JSON."""
LOGPROB_BYTES = 100
"""Bytes of a token or alternative with its log probability, in JSON."""


class TokenLog:
    """The ids of a turn so far, with their log probabilities and the weights that decoded them."""

    __slots__ = ("_logprobs", "_weights", "ids", "readable")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._logprobs: list[TokenLogprob | None] = []
        """One for each id, or empty."""
        self._weights: list[WeightsSpan] = []
        self.readable: int | None = None
        """How many ids can be read; None: all."""

    def add(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob | None] | None) -> None:
        """Adds output tokens. `logprobs`: one for each; None: not requested."""
        self.ids += ids
        if logprobs is not None:
            self._logprobs += logprobs

    def add_weights(self, spans: Iterable[WeightsSpan]) -> None:
        """Adds the versions of the weights that begin among the ids that are added next."""
        self._weights += spans

    def read(self, at: int, room: int) -> tuple[OutputTokens | None, int]:
        """Reads the ids from number `at` on, about as many as there is room for, in bytes.

        Returns them, or None if there are none; and the room that is left: 0 if there are more.
        """
        limit = len(self.ids) if self.readable is None else self.readable
        if at >= limit:
            return None, room
        end = at
        while end < limit and (room > 0 or end == at):
            room -= TOKEN_BYTES
            logprob = self._logprobs[end] if end < len(self._logprobs) else None
            if logprob is not None:
                room -= LOGPROB_BYTES * (1 + len(logprob.top))
            end += 1
        weights = spans_between(self._weights, at, end) if self._weights else []
        tokens = OutputTokens(at, self.ids[at:end], self._logprobs[at:end] or None, weights)
        return tokens, room if end == limit else 0

    def cut(self, length: int) -> None:
        """Removes all ids but the first `length`."""
        del self.ids[length:]
        del self._logprobs[length:]
