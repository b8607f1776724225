"""Chooses the worker and the parser shard of a turn. Pure.

A worker costs what it would have to prefill, plus what its load would cost the turn:

    cost = overlap_weight x (prompt tokens that it has to compute, and a share of those that it has
    to load) + load_tokens x (its turns / its slots)

The cheapest worker that is not full is tried first; a session returns to its worker because that
holds its prefix. Heartbeats report loads once a second; the turns that this preprocessor has sent
since are added, so that a burst is spread.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from msgspec import Struct

from schemas.control import Heartbeat
from schemas.errors import RETRY_AFTER_S, Overloaded, Unavailable

LONG_OUTPUT_TOKENS = 1024
"""Output tokens of a turn that suffers from load twice as long as a turn without output."""
MAX_OUTPUT_FACTOR = 4.0


class TurnProfile(Struct, frozen=True):
    """The properties of a turn that decide the choice of its worker."""

    prompt_tokens: int = 0
    cached: Mapping[str, int] = {}
    """Leading tokens of the prompt that each worker has in its KV cache, by worker."""
    output_tokens: int | None = None
    """The number that the client expects (`nvext.agent_hints.osl`)."""
    loadable: Mapping[str, int] = {}
    """Tokens after the cached ones that each worker can load from a slower memory."""


class Router:
    """Chooses among processes by their heartbeats."""

    def __init__(
        self,
        overlap_weight: float,
        load_tokens: float,
        waiting: Mapping[str, int],
        offload_weight: float = 0.0,
    ) -> None:
        """`overlap_weight`: cost of a prompt token that has to be prefilled; `load_tokens`: cost of
        a worker without a free slot, in prompt tokens; `waiting`: turns that wait to be sent to
        each worker (`Leads.waiting`), so that later ones do not take their place;
        `offload_weight`: cost of a prompt token that has to be loaded, as a share of one that has
        to be computed."""
        self._offload_weight = offload_weight
        self._overlap_weight = overlap_weight
        self._load_tokens = load_tokens
        self._waiting = waiting
        self._in_flight: Counter[str] = Counter()
        """Turns sent to each process since its last heartbeat."""

    def reset(self, heartbeat: Heartbeat) -> None:
        """Resets the estimate of turns in flight: the heartbeat reports them, or the process has
        left."""
        self._in_flight.pop(heartbeat.id, None)

    def rank_workers(
        self,
        heartbeats: list[Heartbeat],
        *,
        avoid: Collection[str],
        late: Collection[str],
        profile: TurnProfile,
    ) -> list[str]:
        """The workers to try, best first. Those to avoid, and those with a late heartbeat, come
        last.

        Raises:
            Unavailable: there is none.
            Overloaded: all are at their limit, as of their last heartbeats.
        """
        if not heartbeats:
            raise Unavailable(
                "no worker serves this model at the moment", retry_after_s=RETRY_AFTER_S
            )
        free = [worker for worker in heartbeats if not _is_full(worker, self._turns(worker))]
        if not free:
            # The turns sent since a heartbeat may have ended: the worker itself knows.
            free = [worker for worker in heartbeats if not _is_full(worker, self._known(worker))]
        if not free:
            raise Overloaded(
                "every worker of this model is at its limit", retry_after_s=RETRY_AFTER_S
            )
        ranked = sorted(
            (
                worker.id in avoid,
                worker.id in late,
                self.cost(worker, profile),
                self._busy(worker),
                worker.id,
            )
            for worker in free
        )
        return [worker for *_, worker in ranked]

    def cost(self, worker: Heartbeat, turn: TurnProfile) -> float:
        """The cost of the turn on this worker, in prompt tokens."""
        missing: float = max(turn.prompt_tokens - turn.cached.get(worker.id, 0), 0)
        missing -= (1 - self._offload_weight) * min(turn.loadable.get(worker.id, 0), missing)
        output_tokens = turn.output_tokens or 0
        factor = min(1.0 + output_tokens / LONG_OUTPUT_TOKENS, MAX_OUTPUT_FACTOR)
        return self._overlap_weight * missing + self._load_tokens * factor * self._busy(worker)

    def choose_parser(self, heartbeats: list[Heartbeat], *, late: Collection[str]) -> str:
        """The shard with the fewest turns; shards with a late heartbeat come last. Raises
        Unavailable: there is none."""
        if not heartbeats:
            raise Unavailable(
                "no parser serves this model at the moment", retry_after_s=RETRY_AFTER_S
            )
        best = min(
            heartbeats,
            key=lambda parser: (
                parser.id in late,
                parser.load.running + self._in_flight[parser.id],
            ),
        )
        return best.id

    def assign(self, *processes: str) -> None:
        """Counts a turn that is being sent to these processes. Counted before they answer: turns
        that arrive together must not all find the same worker idle."""
        self._in_flight.update(processes)

    def unassign(self, *processes: str) -> None:
        """Subtracts a turn that these processes did not take."""
        for process in processes:
            self._in_flight[process] = max(self._in_flight[process] - 1, 0)

    def _turns(self, worker: Heartbeat) -> int:
        """The worker's turns, those that were sent since its last heartbeat included."""
        return self._known(worker) + self._in_flight[worker.id]

    def _known(self, worker: Heartbeat) -> int:
        """The turns that its last heartbeat reports, and those that wait here for it."""
        load = worker.load
        return load.running + load.waiting + self._waiting.get(worker.id, 0)

    def _busy(self, worker: Heartbeat) -> float:
        return self._turns(worker) / max(worker.load.slots, 1)


def _is_full(worker: Heartbeat, turns: int) -> bool:
    load = worker.load
    return load.slots > 0 and turns >= load.slots + load.queue_limit
