"""Writes the records of a frontend's turns to the store, in the background."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from prometheus_client import CollectorRegistry

from schemas.control import RolloutChanged
from schemas.errors import TooLarge, TurnwireError
from services.frontend.rollouts.recent_turns import RecentTurns
from services.frontend.rollouts.rollouts import Rollouts
from services.frontend.rollouts.view import RolloutView
from services.rollouts.stored_turns import (
    FailedTurn,
    OpenTurn,
    StoredTurn,
    pack_turn,
)
from services.rollouts.turn import SampledTurn
from services.runtime.observability.metrics import CountCollector, Reading, register
from services.runtime.observability.telemetry import FilteringBoundLogger

RETRY_S = 2.0
GIVE_UP_S = 600.0
"""How long a record is kept for a store that does not answer."""


class TurnWriter:
    """The records of one frontend that are on their way."""

    def __init__(
        self, rollouts: Rollouts, log: FilteringBoundLogger, metrics: CollectorRegistry
    ) -> None:
        self.stored = 0
        self.failed = 0
        self.lost = 0
        self._rollouts = rollouts
        self._log = log
        self._recent = RecentTurns()
        self._writes: dict[str, asyncio.Task[None]] = {}
        """The newest write of each turn."""
        counters = {
            "turnwire_rollout_turns_total": Reading(
                "Turns of rollouts that were stored with their tokens.", self, "stored"
            ),
            "turnwire_rollout_failed_turns_total": Reading(
                "Turns of rollouts that gave no tokens.", self, "failed"
            ),
            "turnwire_rollout_lost_turns_total": Reading(
                "Turns of rollouts that the store did not take.", self, "lost"
            ),
        }
        register(metrics, CountCollector(counters))

    async def begin(self, view: RolloutView, turn: str, now: float) -> None:
        """Stores that a turn is open. Raises TurnwireError."""
        record = OpenTurn(turn, view.state.run, self._rollouts.process.id, now)
        view.apply(record)
        await self._rollouts.store.put(view.rollout.id, record)

    def write(self, view: RolloutView, run: int, turn: SampledTurn) -> None:
        """Stores a turn with its tokens."""
        self._spawn(turn.id, self._store(view, turn, run))

    def fail(self, view: RolloutView, record: FailedTurn) -> None:
        """Stores why a turn has no tokens."""
        self._spawn(record.turn, self._put(view, record))

    async def drain(self) -> None:
        """Returns when all records are stored."""
        if self._writes:
            await asyncio.wait(self._writes.values())

    def _spawn(self, turn: str, write: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(write)
        self._writes[turn] = task
        task.add_done_callback(lambda done: self._written(turn, done))

    def _written(self, turn: str, task: "asyncio.Task[None]") -> None:
        if self._writes.get(turn) is task:
            del self._writes[turn]

    async def _store(self, view: RolloutView, turn: SampledTurn, run: int) -> None:
        recent = f"{view.rollout.id}/{run}"
        base = self._recent.nearest(recent, turn)
        try:
            await self._put(view, pack_turn(turn, base, run))
        except TooLarge:
            await self._put(view, FailedTurn(turn.id, run, "too_large", len(turn.output)))
        else:
            self._recent.add(recent, turn)

    async def _put(self, view: RolloutView, record: StoredTurn | FailedTurn) -> None:
        """Stores a record, again for `GIVE_UP_S` if the store does not answer. Raises TooLarge."""
        rollout = view.rollout.id
        view.apply(record)  # for the limits of the next turn, which may begin before it is stored
        until = asyncio.get_running_loop().time() + GIVE_UP_S
        while True:
            try:
                await self._rollouts.store.put(rollout, record)
            except TooLarge:
                raise
            except TurnwireError as error:
                # rare: the store is away
                self._log.warning("rollout.turn_not_stored", turn=record.turn, error=str(error))
                if asyncio.get_running_loop().time() > until:
                    self.lost += 1
                    return
                await asyncio.sleep(RETRY_S)
            else:
                self.stored += isinstance(record, StoredTurn)
                self.failed += isinstance(record, FailedTurn)
                self._rollouts.announce(RolloutChanged(rollout, record.turn))
                return
