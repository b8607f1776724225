"""Writes the records of a frontend's turns to the store, in the background."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from schemas.control import RolloutChanged
from schemas.errors import TooLarge, TurnwireError
from services.frontend.rollouts.recent_turns import RecentTurns
from services.frontend.rollouts.rollouts import Rollouts
from services.rollouts.stored_turns import (
    FailedTurn,
    OpenTurn,
    StoredTurn,
    WhyMissing,
    pack_turn,
)
from services.rollouts.turn import SampledTurn
from services.runtime.observability.telemetry import FilteringBoundLogger

RETRY_S = 2.0
GIVE_UP_S = 600.0
"""How long a record is kept for a store that does not answer."""


class TurnWriter:
    """The records of one frontend that are on their way."""

    def __init__(self, rollouts: Rollouts, log: FilteringBoundLogger) -> None:
        self._rollouts = rollouts
        self._log = log
        self._recent = RecentTurns()
        self._writes: dict[str, asyncio.Task[None]] = {}
        """The newest write of each turn."""

    def begin(self, rollout: str, turn: str, run: int, now: float) -> None:
        """Notes that a turn is open: if this process dies, the turn is known to be missing. Raises
        as `Bucket.offer`."""
        self._rollouts.store.offer(rollout, OpenTurn(turn, run, self._rollouts.process.id, now))

    def write(self, rollout: str, run: int, turn: SampledTurn) -> None:
        """Stores a turn with its tokens."""
        self._spawn(turn.id, self._store(rollout, turn, run))

    def fail(self, rollout: str, turn: str, run: int, why: WhyMissing) -> None:
        """Stores why a turn has no tokens."""
        self._spawn(turn, self._put(rollout, FailedTurn(turn, run, why)))

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

    async def _store(self, rollout: str, turn: SampledTurn, run: int) -> None:
        base = self._recent.nearest(rollout, turn)
        try:
            await self._put(rollout, pack_turn(turn, base, run))
        except TooLarge:
            await self._put(rollout, FailedTurn(turn.id, run, "too_large"))
        else:
            self._recent.add(rollout, turn)

    async def _put(self, rollout: str, record: StoredTurn | FailedTurn) -> None:
        """Stores a record, again for `GIVE_UP_S` if the store does not answer. Raises TooLarge."""
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
                    return
                await asyncio.sleep(RETRY_S)
            else:
                self._rollouts.announce(RolloutChanged(rollout, record.turn))
                return
