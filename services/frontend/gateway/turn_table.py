"""Holds the open turns of a frontend. Every event that ends a turn passes here."""

import asyncio
from typing import Literal

from schemas import subjects
from schemas.control import Cancel
from schemas.errors import ErrorInfo
from schemas.events import Failed, Finish, TurnEvent
from services.frontend.gateway.turn_state import Attempt, BusTurn, Ended, StateEvent, Streaming
from services.frontend.turns.interfaces import CancelReason
from services.runtime.caches.recent_turns import RecentTurns
from services.runtime.process import Process

CANCEL_AGAIN_S = 1.0
"""How often the cancellation of a turn that still sends events is repeated."""


class TurnTable:
    """The open turns by id, and their ends."""

    def __init__(self, process: Process) -> None:
        self.by_id: dict[str, BusTurn] = {}
        self._process = process
        self._just_cancelled = RecentTurns(CANCEL_AGAIN_S)
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self.by_id)

    def all(self) -> list[BusTurn]:
        """Returns the turns that are open now."""
        return list(self.by_id.values())

    def of_parser(self, parser: str) -> list[BusTurn]:
        """Returns the turns that this parser sends the events of."""
        return [
            turn
            for turn in self.by_id.values()
            if isinstance(turn.state, Streaming) and turn.state.parser == parser
        ]

    def add(self, turn: BusTurn) -> None:
        """Opens a turn."""
        self.by_id[turn.id] = turn
        self._empty.clear()

    async def wait_until_empty(self) -> None:
        """Returns when no turn is open."""
        await self._empty.wait()

    def push(
        self,
        turn: BusTurn,
        events: list[TurnEvent],
        tokens: int = 0,
        *,
        end: StateEvent = StateEvent.FINISHED,
    ) -> None:
        """Passes events to the sink. A terminal event ends the turn, so only one is ever sent."""
        turn.observer.events(events)
        last = events[-1]
        if isinstance(last, Failed):
            self.end(turn, end, error=last.error)
        elif isinstance(last, Finish):
            self.end(turn, end)
        turn.sink.push(events, tokens)

    def fail(
        self, turn: BusTurn, error: ErrorInfo, event: StateEvent = StateEvent.GIVEN_UP
    ) -> None:
        """Ends a turn with an error, which its client gets."""
        if not isinstance(turn.state, Ended):
            self.push(turn, [Failed(error)], end=event)

    def abandon(
        self, turn: BusTurn, reason: str, error: ErrorInfo, event: StateEvent = StateEvent.GIVEN_UP
    ) -> None:
        """Cancels a turn in all processes, and ends it with an error. `reason`: for its trace."""
        self.supersede(turn, reason)
        self.fail(turn, error, event)

    def cancel(self, turn: BusTurn, reason: CancelReason) -> None:
        """Ends a turn that its client does not want any more."""
        if self.end(turn, StateEvent.CANCELLED, cancelled=reason):
            # Not `failed`, which parsers send, and no new reason, which older releases cannot read.
            sent = "hangup" if reason == "abandoned" else reason
            self.publish_cancel(turn.card.name, turn.id, turn.attempt.number, sent)
            turn.observer.cancelled(reason)

    def end(
        self,
        turn: BusTurn,
        event: StateEvent,
        *,
        error: ErrorInfo | None = None,
        cancelled: CancelReason | None = None,
    ) -> bool:
        """Applies an event that ends a turn. Returns False if the turn had already ended."""
        if not turn.end(event, error):
            return False
        del self.by_id[turn.id]
        turn.observer.ended(error, cancelled)
        if not self.by_id:
            self._empty.set()
        return True

    def supersede(self, turn: BusTurn, reason: str) -> None:
        """Cancels the current attempt in all processes, and numbers the next one. `reason`: for the
        turn's trace."""
        number = turn.attempt.number
        self.publish_cancel(turn.card.name, turn.id, number, "superseded")
        turn.observer.superseded(number, reason)
        turn.attempt = Attempt(number + 1)

    def was_just_cancelled(self, turn: str) -> bool:
        """Returns whether a cancellation of a turn may still be on its way."""
        return turn in self._just_cancelled

    def publish_cancel(
        self,
        model: str,
        turn: str,
        attempt: int,
        reason: Literal["hangup", "slow_reader", "timeout", "superseded"],
    ) -> None:
        """Cancels the attempts up to this one in all processes."""
        self._just_cancelled.note(turn, attempt)
        self._process.publish(subjects.cancel(model), Cancel(turn, attempt, reason))
