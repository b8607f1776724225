"""Chooses the worker and the parser shard of a turn. Pure.

A worker costs what it would have to prefill, plus what its load would cost the turn:

    cost = overlap_weight x (prompt tokens that it does not hold) + load_tokens x (its turns / its slots)

The cheapest that is not full is tried first; a session returns to its worker because that holds its prefix. Heartbeats
bring loads once a second; the turns that this preprocessor has sent since are added, so that a burst is spread.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from msgspec import Struct

from schemas.control import Heartbeat
from schemas.conversation import Conversation
from schemas.errors import RETRY_AFTER_S, Overloaded, Unavailable

MAX_PRIORITY = 2.0**31
LONG_OUTPUT_TOKENS = 1024
"""A turn with so many output tokens suffers from load twice as long as one without any."""
MAX_OUTPUT_FACTOR = 4.0


class Weights(Struct, frozen=True):
    """What overlap and load weigh against each other."""

    overlap: float = 1.0
    """Cost of a prompt token that has to be prefilled."""
    load_tokens: float = 16384.0
    """Cost of a worker all of whose slots are taken, in prompt tokens."""


class TurnProfile(Struct, frozen=True):
    """What matters of a turn when a worker is chosen."""

    prompt_tokens: int = 0
    held: Mapping[str, int] = {}
    """Leading tokens of the prompt that each worker has in its KV cache."""
    output_tokens: int | None = None
    """Expected by the client (`nvext.agent_hints.osl`)."""


class Router:
    """Chooses among processes by their heartbeats."""

    def __init__(self, weights: Weights | None = None) -> None:
        self._weights = weights or Weights()
        self._in_flight: Counter[str] = Counter()
        """Turns sent to each process since its last heartbeat."""

    def reset(self, heartbeat: Heartbeat) -> None:
        """Resets the estimate of turns in flight: the heartbeat reports them, or the process has left."""
        self._in_flight.pop(heartbeat.id, None)

    def workers(
        self,
        heartbeats: list[Heartbeat],
        *,
        avoid: Collection[str],
        late: Collection[str],
        profile: TurnProfile | None = None,
    ) -> list[str]:
        """The workers to try, best first. Those to avoid, and those whose heartbeat is late, come last.

        Raises:
            Unavailable: there is none.
            Overloaded: all are at their limit.
        """
        turn = profile or TurnProfile()
        if not heartbeats:
            raise Unavailable("no worker serves this model at the moment", retry_after_s=RETRY_AFTER_S)
        free = [one for one in heartbeats if not self._saturated(one)]
        if not free:
            raise Overloaded("every worker of this model is at its limit", retry_after_s=RETRY_AFTER_S)
        free.sort(key=lambda one: (one.id in avoid, one.id in late, self.cost(one, turn), self._busy(one), one.id))
        return [one.id for one in free]

    def cost(self, worker: Heartbeat, turn: TurnProfile) -> float:
        """What the turn costs on this worker, in prompt tokens."""
        missing = turn.prompt_tokens - min(turn.held.get(worker.id, 0), turn.prompt_tokens)
        factor = min(1.0 + (turn.output_tokens or 0) / LONG_OUTPUT_TOKENS, MAX_OUTPUT_FACTOR)
        return self._weights.overlap * missing + self._weights.load_tokens * factor * self._busy(worker)

    def parser(self, heartbeats: list[Heartbeat], *, late: Collection[str]) -> str:
        """The shard with the fewest turns; one whose heartbeat is late comes last. Raises Unavailable: there is
        none."""
        if not heartbeats:
            raise Unavailable("no parser serves this model at the moment", retry_after_s=RETRY_AFTER_S)
        return min(heartbeats, key=lambda one: (one.id in late, one.load.running + self._in_flight[one.id])).id

    def assigned(self, *processes: str) -> None:
        """A turn is being sent to them. Counted before they answer: turns that arrive together must not all see the
        same worker idle."""
        self._in_flight.update(processes)

    def returned(self, *processes: str) -> None:
        """The turn was not taken."""
        for process in processes:
            self._in_flight[process] = max(self._in_flight[process] - 1, 0)

    def _turns(self, worker: Heartbeat) -> int:
        return worker.load.running + worker.load.waiting + self._in_flight[worker.id]

    def _busy(self, worker: Heartbeat) -> float:
        return self._turns(worker) / max(worker.load.slots, 1)

    def _saturated(self, worker: Heartbeat) -> bool:
        load = worker.load
        return load.slots > 0 and self._turns(worker) >= load.slots + load.queue_limit


def priority(conversation: Conversation) -> float:
    """The turn's place in an engine's queue; greater is sooner."""
    hints = conversation.hints
    value = hints.priority if hints.priority is not None else hints.latency_sensitivity or 0
    return max(-MAX_PRIORITY, min(MAX_PRIORITY, value))
