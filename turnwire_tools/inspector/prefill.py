"""Estimates how long a deployment takes to compute prompt tokens, from the turns that were seen.
Pure."""

from collections import deque
from statistics import linear_regression

MIN_TOKENS = 64
"""Turns that computed fewer show the fixed costs only."""
MIN_TURNS = 8
"""For a regression."""
KEPT = 512


class PrefillRate:
    """Follows one model: seconds to the first token against prompt tokens that had to be
    computed."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=KEPT)

    def add(self, tokens: int, seconds: float) -> None:
        """Adds a turn: the tokens that its worker computed, and the time from its placement to its
        first token."""
        if tokens >= MIN_TOKENS and seconds > 0:
            self._seen.append((tokens, seconds))

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def ms_per_token(self) -> float | None:
        """Milliseconds for one more token; None until a turn was seen.

        The slope over the turns, which leaves out what every turn pays. Few turns, or turns of one
        size, have no slope: then it is all their time by all their tokens, which is an upper bound.
        """
        if not self._seen:
            return None
        tokens, seconds = zip(*self._seen, strict=True)
        ratio: float = 1000.0 * sum(seconds) / sum(tokens)
        if len(tokens) < MIN_TURNS or max(tokens) < 2 * min(tokens):
            return ratio
        slope = 1000.0 * float(linear_regression(tokens, seconds).slope)
        return slope if 0.0 < slope < ratio else float(ratio)
