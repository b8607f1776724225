"""The interface between the HTTP side of the frontend and the pipeline behind it.

A route opens a turn with a sink; the sink then receives the turn's events in order, until exactly one terminal event.
`bus_gateway` implements the interface over NATS; tests and replays implement it in memory.
"""

from typing import Any, Literal, Protocol, TypeAlias

from schemas.control import ModelCard
from schemas.conversation import Conversation
from schemas.events import Prepared, TurnEvent
from schemas.frames import TextReply

CancelReason: TypeAlias = Literal["hangup", "slow_reader", "timeout", "failed"]
"""`failed`: another choice of the same request failed."""


class TurnSink(Protocol):
    """Receives a turn's events. Both methods are called on the loop, return at once and must not raise."""

    def opened(self, prepared: Prepared) -> None:
        """Announces that the turn is prepared: `TurnGateway.open` will return, unless its caller's task is cancelled.

        Called once at most, before the first `push`.
        """
        ...

    def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
        """Takes the next events: ordered, no gaps, no repeats; possibly before `TurnGateway.open` has returned.

        Only BlockStart, Delta, BlockStop, Finish and Failed come here, and HostedResults from the gateway that runs
        hosted tools. Exactly one Finish or Failed ends them. `tokens`: output tokens of the turn so far; 0: unknown.
        """
        ...


class ContinuedAnswer:
    """The base of a sink for which several turns are opened, one after the other."""

    continues = False
    """The answer has begun: its next turn is accepted while the process drains."""


class OpenTurn(Protocol):
    """A turn that a worker has."""

    id: str
    card: ModelCard
    prepared: Prepared

    def cancel(self, reason: CancelReason) -> None:
        """Stops the turn everywhere. Idempotent; afterwards nothing more is pushed."""
        ...


class TurnGateway(Protocol):
    """The pipeline behind this frontend."""

    async def open(self, conversation: Conversation, sink: TurnSink, *, turn_id: str) -> OpenTurn:
        """Starts a turn; returns once the prompt is ready and a worker has it.

        Cancelling the task that awaits this cancels the turn. Raises TurnwireError if the turn cannot start.
        """
        ...

    async def count(self, conversation: Conversation) -> int:
        """Returns the exact number of a conversation's prompt tokens. Raises TurnwireError."""
        ...

    async def tokenize(
        self, model: str, text: str | None, conversation: Conversation | None, add_special_tokens: bool
    ) -> TextReply:
        """Returns the token ids of a text, or of a conversation's prompt. Raises TurnwireError."""
        ...

    async def detokenize(self, model: str, token_ids: list[int]) -> TextReply:
        """Returns the text of token ids. Raises TurnwireError."""
        ...

    def models(self) -> list[ModelCard]:
        """Returns the models that are served at the moment."""
        ...

    def resolve(self, model: str, conversation: Conversation | None = None) -> ModelCard:
        """Returns the model with this name or alias; of models that share an alias, that of the conversation's session.
        Raises NotFound("model: X")."""
        ...

    def readiness(self) -> dict[str, Any]:
        """Returns the detail of /health; `ready` is whether a turn can be served now."""
        ...

    def live(self) -> bool:
        """Returns False when the process should be restarted."""
        ...
