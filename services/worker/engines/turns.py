"""The turns that an engine has open: from its callbacks to the iterators, and the engine's death to all of them."""

import asyncio
from collections import deque
from collections.abc import Callable

from schemas.errors import ENGINE_DIED, EngineFailed, Invalid
from schemas.events import FinishReason
from services.worker.engine import Delta, EngineDied


class Turn:
    """One open turn. Deltas go in with `put` and come out of `get`, in order, on one event loop.

    Whatever comes after the terminal delta or the failure is ignored: there is exactly one end.
    """

    __slots__ = ("_failure", "_ready", "_waiter", "ended", "id")

    def __init__(self, turn_id: str) -> None:
        self.id = turn_id
        self.ended = False
        self._ready: deque[Delta] = deque()
        self._failure: Callable[[], EngineFailed] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, delta: Delta) -> None:
        """One engine step's result. Never raises: it is called from engines' own callbacks."""
        if not self.ended:
            self.ended = delta.finish is not None
            self._ready.append(delta)
            self._wake()

    def fail(self, failure: Callable[[], EngineFailed]) -> None:
        """The turn ends with an exception, made when it is raised; deltas that came before it still come out."""
        if not self.ended:
            self.ended = True
            self._failure = failure
            self._wake()

    async def get(self) -> Delta:
        """The next delta; raises what `fail` was given."""
        while not self._ready:
            if self._failure is not None:
                raise self._failure()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._ready.popleft()

    def _wake(self) -> None:
        # A bare future, not an asyncio.Queue: this is once per token and turn.
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class OpenTurns:
    """All open turns of one engine."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._turns: dict[str, Turn] = {}
        self._death: str | None = None
        self._stopped = False

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def death(self) -> str | None:
        """Why the engine is dead; None while it lives."""
        return self._death

    @property
    def over(self) -> bool:
        """Dead or stopped."""
        return self._stopped or self._death is not None

    def open(self, turn_id: str) -> Turn:
        """A new turn. Raises Invalid for an id that is in use, EngineDied if the engine is dead or stopped."""
        if self._death is not None:
            raise self.died()
        if self._stopped:
            raise EngineDied(f"the {self._engine} engine was stopped", code=ENGINE_DIED)
        if turn_id in self._turns:
            raise Invalid(f"a turn with the id {turn_id!r} is being decoded", param="id")
        turn = self._turns[turn_id] = Turn(turn_id)
        return turn

    def close(self, turn: Turn) -> None:
        """The turn's iterator is gone."""
        turn.ended = True
        if self._turns.get(turn.id) is turn:
            del self._turns[turn.id]

    def die(self, reason: str) -> None:
        """The engine is dead for good: EngineDied in every open turn, and in every later `open`."""
        if self._death is None:
            self._death = reason
            for turn in list(self._turns.values()):
                turn.fail(self.died)

    def died(self) -> EngineDied:
        """The error that says so. A new one each time: turns must not share a traceback."""
        return EngineDied(f"the {self._engine} engine died: {self._death}", code=ENGINE_DIED)

    def stop(self) -> None:
        """Every open turn ends with CANCELLED; no new one is opened."""
        self._stopped = True
        for turn in list(self._turns.values()):
            turn.put(Delta(finish=FinishReason.CANCELLED))
