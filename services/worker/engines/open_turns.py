"""The open turns of an engine, and the watchdog that declares it dead."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from schemas.control import Load
from schemas.errors import Invalid, TurnwireError, Unavailable
from schemas.events import FinishReason
from services.worker.engine import EngineDelta, EngineDied, Sink

Callback: TypeAlias = Callable[[], object]


def _do_nothing() -> None:
    """Takes the place of a callback that an engine does not need."""


class EngineTurn:
    """One open turn, and the handle that closes it.

    It ends once: with a terminal delta, with a failure, or because it was closed. Later calls are
    ignored.
    """

    __slots__ = ("_put", "_released", "_sink", "_turns", "ended", "id", "task")

    def __init__(
        self, turns: "dict[str, EngineTurn]", turn_id: str, sink: Sink, released: Callback
    ) -> None:
        self.id = turn_id
        self.ended = False
        self.task: asyncio.Task[None] | None = None
        """The task that `run` started."""
        self._turns = turns
        self._sink = sink
        self._put = sink.put
        self._released = released

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work`, which passes on an engine's results, in a task. The end of the turn cancels
        it."""
        self.task = asyncio.create_task(work)

    def put(self, delta: EngineDelta) -> None:
        """Passes on one engine step's result."""
        if not self.ended:
            if delta.finish is not None:
                self._end()
            self._put(delta)

    def fail(self, error: TurnwireError) -> None:
        """Ends the turn with an error. Turns must not share one: it holds a traceback."""
        if not self.ended:
            self._end()
            self._sink.fail(error)

    def close(self) -> None:
        """Ends the turn without calling its sink. Does nothing after its end."""
        if not self.ended:
            self._end()

    def _end(self) -> None:
        self.ended = True
        del self._turns[self.id]
        if self.task and self.task is not asyncio.current_task():
            self.task.cancel()
        released = self._released
        del self._released  # it may hold the turn, which then only the garbage collector finds
        released()


class OpenTurns:
    """All open turns of one engine. Its death ends them; then `on_death` is called."""

    def __init__(self, engine: str, on_death: Callback = _do_nothing) -> None:
        self._engine = engine
        self._on_death = on_death
        self._turns: dict[str, EngineTurn] = {}
        self._stopped = False
        self._stepped_at = 0.0
        self._watcher: asyncio.Task[None] | None = None
        self.death: str | None = None
        """Why the engine is dead; None while it lives."""

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def over(self) -> bool:
        """Whether the engine is dead or stopped."""
        return self._stopped or self.death is not None

    def load(self, slots: int, queue_limit: int, kv_used: float | None) -> Load:
        """Returns the load of an engine with `slots` slots; turns beyond them wait."""
        running = min(len(self._turns), slots)
        return Load(running, len(self._turns) - running, slots, queue_limit, kv_used)

    def tasks(self) -> list[asyncio.Task[None]]:
        """Returns the tasks of the open turns."""
        return [turn.task for turn in self._turns.values() if turn.task]

    def open(self, turn_id: str, sink: Sink, released: Callback = _do_nothing) -> EngineTurn:
        """Opens a turn. `released` is called once at its end, before its sink gets that: the engine
        drops what it has of the turn.

        Raises Invalid for an id that is in use, EngineDied if the engine is dead or stopped.
        """
        if self.death is not None:
            raise self.died()
        if self._stopped:
            raise EngineDied(f"the {self._engine} engine was stopped")
        if turn_id in self._turns:
            raise Invalid(f"a turn with the id {turn_id!r} is being decoded", param="id")
        if not self._turns:
            self.stepped()  # the engine was idle, not silent
        turn = EngineTurn(self._turns, turn_id, sink, released)
        self._turns[turn_id] = turn
        return turn

    def die(self, reason: str) -> None:
        """Ends every open turn with EngineDied; every later `open` raises it."""
        if self.death is None:
            self.death = reason
            for turn in list(self._turns.values()):
                turn.fail(self.died())
            self._on_death()

    def abort(self, reason: str) -> None:
        """Ends every open turn with an error that clients retry."""
        for turn in list(self._turns.values()):
            turn.fail(Unavailable(reason))

    def died(self) -> EngineDied:
        """Makes an error for a dead engine."""
        return EngineDied(f"the {self._engine} engine died: {self.death}")

    def stepped(self) -> None:
        """Notes that the engine has run a step."""
        self._stepped_at = time.monotonic()

    def watch(
        self, limit_s: float, check: Callable[[], str | None], interval_s: float = 0.25
    ) -> None:
        """Starts the watchdog: the engine is dead if no step comes for `limit_s` seconds while
        turns are open, or if `check` returns a reason."""

        async def run() -> None:
            while self.death is None:
                await asyncio.sleep(interval_s)
                reason = check()
                if reason:
                    self.die(reason)
                elif self._turns and time.monotonic() - self._stepped_at > limit_s:
                    self.die(f"it reported nothing, no step in {limit_s:.0f} s")

        self._watcher = asyncio.create_task(run())

    def stop(self) -> None:
        """Ends every open turn with CANCELLED; every later `open` raises EngineDied."""
        self._stopped = True
        if self._watcher:
            self._watcher.cancel()
        for turn in list(self._turns.values()):
            turn.put(EngineDelta(finish=FinishReason.CANCELLED))
