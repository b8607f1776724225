"""Writes the records of a frontend's turns to the store, in the background."""

import asyncio

from prometheus_client import CollectorRegistry

from schemas.errors import TooLarge
from services.frontend.rollouts.last_turns import LastTurns
from services.frontend.rollouts.rollouts import Rollouts
from services.frontend.rollouts.view import RolloutView
from services.rollouts.sampled_turn import SampledTurn
from services.rollouts.stored_turns import (
    BegunTurn,
    FailedTurn,
    StoredTurn,
    WhyMissing,
    pack_turn,
)
from services.runtime.observability.metrics import CountCollector, Reading
from services.runtime.observability.telemetry import FilteringBoundLogger

RETRY_S = 2.0
GIVE_UP_S = 600.0
"""How long the tokens of a turn are kept for a store that does not answer."""
DRAIN_S = 5.0


class TurnWriter:
    """The records of one frontend that are on their way."""

    def __init__(
        self, rollouts: Rollouts, log: FilteringBoundLogger, metrics: CollectorRegistry
    ) -> None:
        self.stored = 0
        self.failed = 0
        self._rollouts = rollouts
        self._log = log
        self._last = LastTurns()
        self._writes: set[asyncio.Task[None]] = set()
        stored = Reading("Turns of rollouts that were stored with tokens.", self, "stored")
        failed = Reading("Turns of rollouts that were stored without tokens.", self, "failed")
        counters = {
            "turnwire_rollout_turns_total": stored,
            "turnwire_rollout_failed_turns_total": failed,
        }
        metrics.register(CountCollector(counters))

    async def begin(self, view: RolloutView, turn: str, now: float) -> None:
        """Stores that a turn is open: if this process dies, it is known to be missing. Raises
        TurnwireError."""
        record = BegunTurn(turn, view.state.run, self._rollouts.peers.id, now)
        view.note(record)
        await self._rollouts.store.put(view.rollout.id, record)

    def write(self, view: RolloutView, run: int, turn: SampledTurn, newest_weights: int) -> None:
        """Stores a turn with its tokens. `newest_weights`: as in `StoredTurn`."""
        key = f"{view.rollout.id}/{run}"
        record = pack_turn(turn, self._last.nearest(key, turn), run, newest_weights)
        self._start(view, record, turn)

    def fail(self, view: RolloutView, record: FailedTurn) -> None:
        """Stores why a turn has no tokens."""
        self._start(view, record)

    async def drain(self) -> None:
        """Returns when all records are stored, or after `DRAIN_S`."""
        if self._writes:
            await asyncio.wait(self._writes, timeout=DRAIN_S)

    def _start(
        self,
        view: RolloutView,
        record: StoredTurn | FailedTurn,
        turn: SampledTurn | None = None,
    ) -> None:
        view.note(record)
        task = asyncio.get_running_loop().create_task(self._write(view, record, turn))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(
        self, view: RolloutView, record: StoredTurn | FailedTurn, turn: SampledTurn | None
    ) -> None:
        """Writes a record. Later prompts may be stored as the difference to `turn`."""
        stored = await self._put(view, record)
        if turn is not None and isinstance(stored, StoredTurn):
            self._last.add(f"{view.rollout.id}/{record.run}", turn)
        self.stored += isinstance(stored, StoredTurn)
        self.failed += isinstance(stored, FailedTurn)
        self._rollouts.announce(view)

    async def _put(
        self, view: RolloutView, record: StoredTurn | FailedTurn
    ) -> StoredTurn | FailedTurn:
        """Stores a record, or in place of its tokens why they are missing. Tries again while the
        store does not answer. Returns what is stored."""
        loop = asyncio.get_running_loop()
        until = loop.time() + GIVE_UP_S
        while True:
            try:
                await self._rollouts.store.put(view.rollout.id, record)
                return record
            except TooLarge:
                record = _without_tokens(record, "too_large")
            except Exception as error:
                # rare: the store is away
                self._log.warning("rollout.turn_not_stored", turn=record.turn, error=str(error))
                if loop.time() > until:
                    record = _without_tokens(record, "lost")
                await asyncio.sleep(RETRY_S)


def _without_tokens(record: StoredTurn | FailedTurn, why: WhyMissing) -> FailedTurn:
    return FailedTurn(record.turn, record.run, why, record.output_tokens)
