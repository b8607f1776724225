"""Remembers the last turns of rollouts, so that the next turn's prompt is stored as what it adds to
one of them. Pure."""

from cachetools import LRUCache
from msgspec.structs import replace

from services.rollouts.sampled_turn import SampledTurn
from services.tokenization.segments import common_prefix

MAX_BYTES = 64 * 1024 * 1024
"""Limit of all that is remembered: 200 conversations of 50,000 tokens."""
KEPT = 6
"""Turns of one rollout: the newest of its conversation and of its helpers'."""
_TOKEN_BYTES = 4
_TURN_BYTES = 1024
"""Bytes of a turn besides its tokens, about."""


class LastTurns:
    """The newest turns of each run of a rollout, bounded in bytes; the least recently used are
    dropped. Without them a turn of 52,000 tokens takes 213 KB of the store, with them 4 KB."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._turns: LRUCache[str, list[SampledTurn]] = LRUCache(max_bytes, getsizeof=_size)

    def nearest(self, run: str, turn: SampledTurn) -> SampledTurn | None:
        """Returns the turn with most tokens in common with the prompt; None: none has any."""
        shared = {
            index: len(common_prefix(earlier.prompt + earlier.output, turn.prompt))
            for index, earlier in enumerate(self._turns.get(run, ()))
        }
        best = max(shared, key=shared.__getitem__, default=0)
        if not shared.get(best):
            return None
        return self._turns[run][best]

    def add(self, run: str, turn: SampledTurn) -> None:
        """Remembers a turn that is stored, in place of one that its prompt continues."""
        turn = replace(turn, logprobs=[], blocks=None, written=[], images=[])
        others = [
            earlier
            for earlier in self._turns.get(run, ())
            if turn.prompt[: len(earlier.prompt)] != earlier.prompt
        ]
        kept = [*others, turn][-KEPT:]
        if _size(kept) <= self._turns.maxsize:
            self._turns[run] = kept


def _size(turns: list[SampledTurn]) -> int:
    tokens = sum(len(turn.prompt) + len(turn.output) for turn in turns)
    return tokens * _TOKEN_BYTES + len(turns) * _TURN_BYTES
