"""Who decodes and who parses a turn. Pure.

A worker costs what it would have to prefill, plus what its load would cost the turn:

    cost = overlap_weight x (prompt tokens that it does not hold) + load_tokens x (its turns / its slots)

The cheapest that is not full is asked first; a session comes back to its worker because that holds its prefix. Loads
come with beats, once a second; what this preprocessor itself sent out since is added, so that a burst between two beats
is spread.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from msgspec import Struct

from schemas.control import Beat
from schemas.conversation import Conversation
from schemas.errors import Overloaded, Unavailable

RETRY_AFTER_S = 1.0
MAX_PRIORITY = 2**31 - 1
LONG_OUTPUT_TOKENS = 1024
"""A turn that will say as much as this suffers from load twice as long as one that says nothing."""
MAX_OUTPUT_FACTOR = 4.0


class Weights(Struct, frozen=True):
    """What overlap and load weigh against each other."""

    overlap: float = 1.0
    """Cost of a prompt token that has to be prefilled."""
    load_tokens: float = 16384.0
    """Cost of a worker all of whose slots are taken, in prompt tokens."""


class Wanted(Struct, frozen=True):
    """What is to be placed."""

    prompt_tokens: int = 0
    held: Mapping[str, int] = {}
    """Leading tokens of the prompt that each worker has in its KV cache."""
    output_tokens: int | None = None
    """To expect (`nvext.agent_hints.osl`)."""


class Router:
    """Chooses among beats."""

    def __init__(self, weights: Weights | None = None) -> None:
        self._weights = weights or Weights()
        self._since_beat: Counter[str] = Counter()

    def heard(self, beat: Beat) -> None:
        """A beat tells the true load: what was added to the last one is in it."""
        self._since_beat.pop(beat.id, None)

    def left(self, beat: Beat) -> None:
        """A process is gone, and with it what was sent to it."""
        self._since_beat.pop(beat.id, None)

    def workers(
        self,
        beats: list[Beat],
        *,
        avoid: Collection[str],
        late: Collection[str],
        wanted: Wanted | None = None,
    ) -> list[str]:
        """The workers to ask, best first. Those to avoid, and those whose beat is late, come last.

        Raises:
            Unavailable: there is none.
            Overloaded: all are at their limit.
        """
        wanted = wanted or Wanted()
        if not beats:
            raise Unavailable("no worker serves this model at the moment", retry_after_s=RETRY_AFTER_S)
        free = [beat for beat in beats if not self._saturated(beat)]
        if not free:
            raise Overloaded("every worker of this model is at its limit", retry_after_s=RETRY_AFTER_S)
        free.sort(
            key=lambda beat: (beat.id in avoid, beat.id in late, self.cost(beat, wanted), self._busy(beat), beat.id)
        )
        return [beat.id for beat in free]

    def cost(self, beat: Beat, wanted: Wanted) -> float:
        """What the turn costs on this worker, in prompt tokens."""
        missing = wanted.prompt_tokens - min(wanted.held.get(beat.id, 0), wanted.prompt_tokens)
        factor = min(1.0 + (wanted.output_tokens or 0) / LONG_OUTPUT_TOKENS, MAX_OUTPUT_FACTOR)
        return self._weights.overlap * missing + self._weights.load_tokens * factor * self._busy(beat)

    def parser(self, beats: list[Beat], *, late: Collection[str]) -> str:
        """The shard with the fewest turns; one whose beat is late comes last.

        Raises:
            Unavailable: there is none.
        """
        if not beats:
            raise Unavailable("no parser serves this model at the moment", retry_after_s=RETRY_AFTER_S)
        return min(beats, key=lambda beat: (beat.id in late, beat.load.running + self._since_beat[beat.id])).id

    def assigned(self, process: str) -> None:
        """A turn was given to this worker or shard."""
        self._since_beat[process] += 1

    def returned(self, process: str) -> None:
        """It was not taken."""
        if self._since_beat[process] > 0:
            self._since_beat[process] -= 1

    def _turns(self, beat: Beat) -> int:
        return beat.load.running + beat.load.waiting + self._since_beat[beat.id]

    def _busy(self, beat: Beat) -> float:
        return self._turns(beat) / max(beat.load.slots, 1)

    def _saturated(self, beat: Beat) -> bool:
        load = beat.load
        return load.slots > 0 and self._turns(beat) >= load.slots + load.queue_limit


def priority(conversation: Conversation) -> int:
    """The turn's place in an engine's queue; greater is sooner."""
    hints = conversation.hints
    wish = hints.priority if hints.priority is not None else hints.latency_sensitivity or 0
    return int(max(-MAX_PRIORITY, min(MAX_PRIORITY, wish)))
