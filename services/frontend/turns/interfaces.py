"""The interface between the HTTP side of the frontend and the pipeline behind it.

A route opens a turn with a sink; the sink then receives the turn's events in order, until exactly one terminal event.
`gateway` implements the interface over NATS; tests and replays implement it in memory.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from schemas.control import ModelCard
from schemas.conversation import Conversation
from schemas.errors import ErrorInfo
from schemas.events import Prepared, TurnEvent
from schemas.frames import TextReply

if TYPE_CHECKING:
    from services.frontend.turns.admission import Admitted

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


class OpenTurn(Protocol):
    """A turn that a worker has."""

    id: str
    card: ModelCard
    prepared: Prepared

    def cancel(self, reason: CancelReason) -> None:
        """Stops the turn everywhere. Idempotent; afterwards nothing more is pushed."""
        ...


class TurnGateway(Protocol):
    """The pipeline of this frontend. What it works on was admitted (`admission`)."""

    async def open(self, admitted: "Admitted", sink: TurnSink, *, turn_id: str) -> OpenTurn:
        """Starts a turn; returns once the prompt is ready and a worker has it.

        Cancelling the task that awaits this cancels the turn. Raises TurnwireError if the turn cannot start.
        """
        ...

    async def count(self, admitted: "Admitted") -> int:
        """Returns the exact number of a conversation's prompt tokens. Raises TurnwireError."""
        ...

    async def tokenize(self, admitted: "Admitted", text: str | None, add_special_tokens: bool) -> TextReply:
        """Returns the token ids of a text; without one, those of the conversation's prompt. Raises TurnwireError."""
        ...

    async def detokenize(self, admitted: "Admitted", token_ids: list[int]) -> TextReply:
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


class Reply(Struct, frozen=True):
    """What a renderer needs beside the events."""

    turn: str
    """The turn's id, of [0-9a-z]; object ids are derived from it."""
    request_id: str
    model: str
    """The model's name as the client spelled it."""
    created: int
    """Unix time in seconds."""
    dispatch: bool = False
    """Send each complete tool call again in an event of its own."""
    dispatch_reasoning: bool = False
    """Send each finished reasoning block again in an event of its own."""
    now: Callable[[], float] | None = None
    """Unix time, for answers that contain their end time."""


class Renderer(Protocol):
    """One streamed answer. Every method returns the bytes to send next, possibly none."""

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """The opening of the stream. Called once, first; one `Prepared` for each choice."""

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """The next events of one choice's turn; the last choice's Finish, and any Failed, end the stream."""

    def error(self, info: ErrorInfo) -> bytes:
        """An error that ends the stream and is no event of the turn."""


class Collector(Protocol):
    """One answer that is sent whole."""

    def start(self, prepared: Sequence[Prepared]) -> None:
        """Called once, first; one `Prepared` for each choice."""

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        """The next events of one choice's turn."""

    def body(self) -> bytes:
        """The JSON document; called once, after every choice's Finish."""


class Ask(Protocol):
    """A parsed request."""

    @property
    def conversations(self) -> Sequence[Conversation]:
        """One for each choice of the answer. `model`, the same in all, is as the client spelled it, "" if absent."""

    @property
    def stream(self) -> bool:
        """Whether the answer is streamed."""

    @property
    def notes(self) -> Sequence[str]:
        """Parts of the request that are ignored because this server lacks them; for a response header and the log."""

    def renderer(self, reply: Reply) -> Renderer:
        """The streamed answer."""

    def collector(self, reply: Reply) -> Collector:
        """The answer in one piece."""


class Dialect(Protocol):
    """One API that creates turns."""

    @property
    def name(self) -> str:
        """For metrics and logs."""

    @property
    def keepalive(self) -> bytes:
        """Bytes that the API's clients ignore; may be sent between any two events of a stream."""

    def parse(self, body: bytes, headers: Mapping[str, str]) -> Ask:
        """Parses a request. `headers` is looked up by lower-case names. Raises Invalid."""
