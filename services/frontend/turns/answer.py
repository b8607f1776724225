"""Holds one answer while it is made: its record, its deadline and its open turns."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from schemas.conversation import Conversation
from schemas.errors import ContextOverflow
from services.frontend.http.middleware import RequestContext
from services.frontend.turns.interfaces import CancelReason, Collector, OpenTurn, Renderer
from services.frontend.turns.metrics import TurnRecord

OnEnd: TypeAlias = Callable[[Renderer | Collector], None]
"""Called when every turn has ended, before the client gets the end; not for an answer that was given up."""
Shorten: TypeAlias = Callable[[Conversation, ContextOverflow], Awaitable[Conversation]]
"""Shortens a conversation that does not fit the context window. Raises that error again where it may not or cannot."""


@dataclass(slots=True)
class Answer:
    """One answer: of an HTTP request, a background response, a WebSocket lane, or for this server itself."""

    context: RequestContext
    dialect: str
    """For metrics."""
    record: TurnRecord
    deadline: float
    """The loop's time at which the answer times out."""
    turn_id: str
    on_end: OnEnd | None = None
    shorten: Shorten | None = None
    turns: Sequence[OpenTurn] = ()
    """One for each choice; none before all are open, and after `cancel`."""

    def cancel(self, reason: CancelReason) -> None:
        """Cancels the open turns."""
        turns, self.turns = self.turns, ()
        for turn in turns:
            turn.cancel(reason)
