"""What the gateway knows of one open turn."""

import asyncio
from collections.abc import Callable

from schemas.control import ModelCard
from schemas.conversation import Conversation
from schemas.events import Prepared
from schemas.frames import TurnRequest
from services.frontend.turns import CancelReason, TurnSink
from services.runtime.turnlog import Cursor


class Turn:
    """One open turn (an `OpenTurn`)."""

    __slots__ = (
        "_cancel",
        "attempt",
        "avoid",
        "card",
        "conversation",
        "cursor",
        "deadline",
        "id",
        "interruptions",
        "outcome",
        "parser",
        "prepared",
        "preprocessor",
        "resume",
        "sink",
        "streaming",
        "traceparent",
        "work",
        "worker",
    )

    def __init__(
        self,
        turn_id: str,
        card: ModelCard,
        conversation: Conversation,
        sink: TurnSink,
        *,
        deadline: float,
        traceparent: str | None,
        cancel: "Callable[[Turn, CancelReason], None]",
    ) -> None:
        self.id = turn_id
        self.card = card
        self.conversation = conversation
        self.sink = sink
        self.deadline = deadline
        self.traceparent = traceparent
        self.prepared = Prepared(0, 0)
        self.attempt = 1
        self.interruptions = 0
        self.resume = b""
        self.avoid: list[str] = []
        self.preprocessor = ""
        self.parser = ""
        self.worker = ""
        self.cursor = Cursor()
        self.streaming = False
        """The present attempt is prepared: its events count."""
        self.outcome: asyncio.Future[Prepared] | None = None
        """Of the attempt that is being prepared."""
        self.work: asyncio.Task[None] | None = None
        """Goes on after an interruption."""
        self._cancel = cancel

    def cancel(self, reason: CancelReason) -> None:
        """Stops the turn everywhere. Idempotent; after it nothing more is pushed."""
        self._cancel(self, reason)

    def request(self, frontend: str) -> TurnRequest:
        """What the present attempt asks for."""
        return TurnRequest(
            turn=self.id,
            frontend=frontend,
            conversation=self.conversation,
            attempt=self.attempt,
            deadline=self.deadline,
            resume=self.resume,
            avoid=self.avoid,
            traceparent=self.traceparent,
        )
