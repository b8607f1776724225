"""Compares what a worker expected in its engine's cache with what the engine found. Pure."""

from collections import deque

from msgspec import Struct

WATCHED_TURNS = 16
"""The last turns that count."""
MOST_WRONG = 4
"""Turns of them that may find less than expected; with one more, the predictions are wrong."""


class Prediction(Struct, frozen=True):
    """The beginning of a prompt that a worker expects in the cache."""

    tokens: int
    last_key: int
    """The key of its last block."""
    removals: int
    """The removals that the index knew of (`KvBlockIndex.removals`)."""


class PredictionJudge:
    """Finds predictions that promise too much.

    A difference of up to a block counts as none: the blocks in which a prompt's last tokens are
    computed again differ between engines. A turn does not count if the last block of the expected
    beginning was removed meanwhile: the engine may evict it between the prediction and the turn's
    first step, and removes the end of a beginning first.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._turns: deque[bool] = deque(maxlen=WATCHED_TURNS)
        """Whether the engine found less, for each of the last turns with a prediction."""

    def record(self, expected: int, cached: int, *, removed: bool) -> None:
        """Records a turn, in tokens. `removed`: the last block was removed in between."""
        is_wrong = expected - cached > self._block_tokens
        if expected and not (is_wrong and removed):
            self._turns.append(is_wrong)

    @property
    def objection(self) -> str:
        """Why the predictions should end; "": they should not."""
        wrong = sum(self._turns)
        if wrong <= MOST_WRONG:
            return ""
        return (
            f"the engine found less than its events promised in {wrong} of {len(self._turns)} turns"
        )
