"""The turns that an engine has open: from its callbacks to their sinks, and the engine's death to all of them."""

from collections.abc import Callable

from schemas.errors import ENGINE_DIED, Invalid, TurnwireError
from schemas.events import FinishReason
from services.worker.engine import Delta, EngineDied, Sink


class Turn:
    """One open turn, and the handle by which it is closed.

    It ends once: with a terminal delta, a failure, or because it was closed. Whatever comes after that is ignored.
    """

    __slots__ = ("_put", "_released", "_sink", "_turns", "ended", "id")

    def __init__(self, turns: "OpenTurns", turn_id: str, sink: Sink, released: Callable[[], None]) -> None:
        self.id = turn_id
        self.ended = False
        self._turns = turns
        self._sink = sink
        self._put = sink.put
        self._released = released

    def put(self, delta: Delta) -> None:
        """One engine step's result."""
        if not self.ended:
            if delta.finish is not None:
                self._end()
            self._put(delta)

    def fail(self, error: TurnwireError) -> None:
        """The turn ends with an error. Turns must not share one, for it holds a traceback."""
        if not self.ended:
            self._end()
            self._sink.fail(error)

    def close(self) -> None:
        """See `Handle.close`."""
        if not self.ended:
            self._end()

    def _end(self) -> None:
        self.ended = True
        self._turns.forget(self)
        self._released()


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

    def open(self, turn_id: str, sink: Sink, released: Callable[[], None]) -> Turn:
        """A new turn. `released` is called once, as it ends, before the sink hears of the end.

        Raises Invalid for an id that is in use, EngineDied if the engine is dead or stopped.
        """
        if self._death is not None:
            raise self.died()
        if self._stopped:
            raise EngineDied(f"the {self._engine} engine was stopped", code=ENGINE_DIED)
        if turn_id in self._turns:
            raise Invalid(f"a turn with the id {turn_id!r} is being decoded", param="id")
        turn = self._turns[turn_id] = Turn(self, turn_id, sink, released)
        return turn

    def forget(self, turn: Turn) -> None:
        """The turn has ended: its id can be used again."""
        if self._turns.get(turn.id) is turn:
            del self._turns[turn.id]

    def die(self, reason: str) -> None:
        """The engine is dead for good: EngineDied in every open turn, and in every later `open`."""
        if self._death is None:
            self._death = reason
            for turn in list(self._turns.values()):
                turn.fail(self.died())

    def died(self) -> EngineDied:
        """The error that says so, a new one each time."""
        return EngineDied(f"the {self._engine} engine died: {self._death}", code=ENGINE_DIED)

    def stop(self) -> None:
        """Every open turn ends with CANCELLED; no new one is opened."""
        self._stopped = True
        for turn in list(self._turns.values()):
            turn.put(Delta(finish=FinishReason.CANCELLED))
