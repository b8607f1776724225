"""What the HTTP side of the frontend asks of the bus side, and nothing more.

`gateway.py` implements it over NATS, the tests implement it in memory. A route opens a turn with a sink; from then on
the turn's events arrive in the sink, in order, whole, until exactly one terminal event.
"""

from typing import Any, Literal, Protocol, TypeAlias

from schemas.control import ModelCard
from schemas.conversation import Conversation
from schemas.events import Prepared, TurnEvent
from schemas.frames import TextReply

CancelReason: TypeAlias = Literal["hangup", "slow_reader", "timeout", "failed"]
"""`failed`: another choice of the same request failed."""


class TurnSink(Protocol):
    """Where a turn's events go."""

    def opened(self, prepared: Prepared) -> None:
        """The turn is prepared: `TurnGateway.open` is about to return, unless its caller's task is cancelled.

        Called once at most, before the first `push`, or not at all. Returns at once; must not raise.
        """
        ...

    def push(self, events: list[TurnEvent]) -> None:
        """Takes the next events: ordered, no gaps, no repeats.

        Called on the loop and returns at once; must not raise. Only BlockStart, Delta, BlockStop, Finish and Failed
        come here, and exactly one terminal (Finish or Failed) ends them. Events may come before `TurnGateway.open` has
        returned.
        """
        ...


class OpenTurn(Protocol):
    """A turn that a worker has."""

    id: str
    card: ModelCard
    prepared: Prepared

    def cancel(self, reason: CancelReason) -> None:
        """Stops the turn everywhere. Idempotent; after it nothing more is pushed."""
        ...


class TurnGateway(Protocol):
    """The pipeline behind this frontend."""

    async def open(
        self, conversation: Conversation, sink: TurnSink, *, turn_id: str, traceparent: str | None = None
    ) -> OpenTurn:
        """Starts a turn; returns once the prompt is ready and a worker has it.

        Cancelling the task that awaits this cancels the turn. Raises TurnwireError if the turn cannot start.
        """
        ...

    async def count(self, conversation: Conversation) -> int:
        """Exact prompt tokens of a conversation. Raises TurnwireError."""
        ...

    async def tokenize(
        self, model: str, text: str | None, conversation: Conversation | None, add_special_tokens: bool
    ) -> TextReply:
        """Token ids of a text, or of the prompt that a conversation makes. Raises TurnwireError."""
        ...

    async def detokenize(self, model: str, token_ids: list[int]) -> TextReply:
        """The text of token ids. Raises TurnwireError."""
        ...

    def models(self) -> list[ModelCard]:
        """Every model that is served at the moment."""
        ...

    def resolve(self, model: str) -> ModelCard:
        """The model with this name or alias. Raises NotFound("model: X")."""
        ...

    def readiness(self) -> dict[str, Any]:
        """Detail for /health; key `ready` says whether a turn can be served now."""
        ...

    def live(self) -> bool:
        """False when the process should be restarted."""
        ...
