"""Defines the interface between the HTTP side of the frontend and the pipeline.

An answer (`answer.RunningAnswer`) opens each of its turns with a sink; the sink then receives the
turn's events in order, until exactly one terminal event. `services.frontend.gateway` implements
the gateway over NATS; `turns.hosted` and `rollouts` implement it with the one that follows them,
tests and replays in memory.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias, final

from msgspec import Struct, structs

from schemas.control import VISION, EngineControl, EngineState, ModelCard
from schemas.conversation import Conversation, Message, ToolChoice
from schemas.errors import ErrorInfo
from schemas.events import Prepared, TurnEvent
from schemas.requests import TextReply
from services.frontend.content.image import without_images
from services.frontend.http.auth import Caller
from services.frontend.media.image_reader import RequestImages
from services.frontend.models.catalog import Catalog

CancelReason: TypeAlias = Literal["hangup", "slow_reader", "timeout", "abandoned"]
"""`abandoned`: this server does not need the turn any more, as after the failure of another choice
of the same request, or the end of its rollout."""


@final
@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may reach the gateway.

    Only `Admission` makes one, after all its checks, so that no route can forget a check. (A test
    looks for other places.)
    """

    caller: Caller
    card: ModelCard
    conversation: Conversation
    """The conversation for the pipeline: with the served model's name, the caller's tenant, and the
    text of documents. Empty for a request about text alone."""
    notice: str = ""
    """The note that the answer ends with; "" for none."""
    images: RequestImages | None = None
    """Set if the model gets images of the request."""
    continues: bool = False
    """The answer has begun: its next turn is accepted while the process drains."""

    def may_run_on(self, card: ModelCard) -> bool:
        """Returns whether another model may decode the turn: the caller may use it, and it can do
        what the request needs. A turn of a rollout stays: its samples are of one model."""
        if self.caller.rollout is not None or not self.caller.sees(card):
            return False
        return card.tools or not self.conversation.tools

    def move_to(self, card: ModelCard) -> "Admitted":
        """Returns the request for another model, that it may run on."""
        conversation = structs.replace(self.conversation, model=card.name, adapter=card.adapter)
        if VISION not in card.features:
            conversation = without_images(conversation)
        return replace(self, card=card, conversation=conversation)

    def with_conversation(self, conversation: Conversation) -> "Admitted":
        """Returns the request with a conversation that this server made of the admitted one."""
        return replace(self, conversation=conversation)

    def with_choice(self, other: Conversation) -> "Admitted":
        """Returns the request for another choice of the answer, with its prompt and sampling."""
        conversation = structs.replace(
            self.conversation, prompt=other.prompt, sampling=other.sampling
        )
        return replace(self, conversation=conversation)

    def next_turn(
        self, messages: list[Message], max_tokens: int | None, choice: ToolChoice
    ) -> "Admitted":
        """Returns the request for the next turn of the same answer, with messages that this server
        made of the admitted ones."""
        # The answer is compared with an earlier one once: it has the id of its first turn.
        following = structs.replace(
            self.conversation,
            messages=messages,
            sampling=structs.replace(self.conversation.sampling, max_tokens=max_tokens),
            tool_choice=choice,
            client=structs.replace(self.conversation.client, compare=None),
        )
        return replace(self, conversation=following, images=None, continues=True)


class TurnSink(ABC):
    """Receives a turn's events. Both methods are called on the loop, return at once and must not
    raise.

    Events pass from the bus to the client through these sinks, each where it is needed:
    `RecordedTurn` (of a rollout), `HostedAnswer` (with tools that the server runs), `NoticeSink`
    (with a note for the user), `ChoiceSink` (of several choices), and at the end an `AnswerSink`,
    which renders or keeps them. The gateways that add the first two are nested in the opposite
    order (`TurnGateway`).
    """

    @abstractmethod
    def opened(self, prepared: Prepared) -> None:
        """Called once a worker has the turn, shortly before `TurnGateway.open` returns; at most
        once, before the first `push`.

        The task that awaits `open` gets `prepared`, too, but only after the first events, if they
        arrive in the same tick: a stream starts with them and this `prepared`.
        """

    @abstractmethod
    def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
        """Takes the next events: ordered, no gaps, no repeats; possibly before `TurnGateway.open`
        has returned.

        They are BlockStart, Delta, Dispatch, BlockStop, Finish and Failed; OutputTokens, if the
        request asks for token ids; and HostedResults between two turns of an answer with hosted
        tools. Exactly one Finish or Failed ends them. `tokens`: output tokens of the turn so far;
        0: unknown.
        """


@final
@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A turn that a worker has accepted."""

    prepared: Prepared
    cancel: Callable[[CancelReason], None]
    """Stops the turn everywhere. Idempotent; afterwards nothing more is pushed."""


class TurnGateway(Protocol):
    """Opens turns of admitted requests.

    `app.make_app` nests the gateways: `HostedToolGateway` opens each turn of an answer with
    `RecordingGateway`, which opens those of rollouts, and all others, with `BusGateway`. Without
    rollouts there is no `RecordingGateway`.
    """

    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> OpenTurn:
        """Starts a turn; returns once the prompt is ready and a worker has it.

        Cancelling the task that awaits this cancels the turn, for `cancel_scope.reason_of`. Raises
        TurnwireError if the turn cannot start.
        """
        ...

    async def drain(self) -> None:
        """Returns when no turn is open. If cancelled, ends the open turns, each with an error."""
        ...


class Pipeline(Protocol):
    """The other stages, as this frontend uses them."""

    @property
    def gateway(self) -> TurnGateway:
        """Opens turns."""

    @property
    def catalog(self) -> Catalog:
        """The served models."""

    async def count(self, admitted: Admitted) -> int:
        """Returns the exact number of a conversation's prompt tokens. Raises TurnwireError."""
        ...

    async def tokenize(
        self, admitted: Admitted, text: str | None, add_special_tokens: bool
    ) -> TextReply:
        """Returns the token ids of a text; without a text, of the conversation's prompt. Raises
        TurnwireError."""
        ...

    async def detokenize(self, admitted: Admitted, token_ids: list[int]) -> TextReply:
        """Returns the text of token ids. Raises TurnwireError."""
        ...

    async def control(self, model: str, control: EngineControl) -> list[EngineState]:
        """Returns the state of each worker of a model after a control of its engine, with an error
        if the control failed. Raises Unavailable if the model has no workers."""
        ...

    def readiness(self) -> dict[str, Any]:
        """Returns the detail of /health; `ready` is whether a turn can be served now."""
        ...

    def live(self) -> bool:
        """Returns False when the process should be restarted."""
        ...


class RenderInfo(Struct, frozen=True, kw_only=True):
    """The facts that a renderer needs besides the events."""

    turn: str
    """The turn's id, of [0-9a-z]; object ids are derived from it."""
    request_id: str
    model: str
    """The model's name as the client spelled it."""
    created: int
    """Unix time in seconds."""
    clock: Callable[[], float]
    """Returns the Unix time in seconds, for answers that contain the time of their end."""
    dispatch: bool = False
    """Send each complete tool call again in an event of its own."""
    dispatch_reasoning: bool = False
    """Send each finished reasoning block again in an event of its own."""


class Renderer(ABC):
    """Renders one streamed answer. Every method returns the bytes to send next, possibly none."""

    @abstractmethod
    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """Renders the opening of the stream. Called once, first. `prepared`: one a choice."""

    @abstractmethod
    def render(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """Renders the next events of one choice. The last choice's Finish, and any Failed, end the
        stream."""

    @abstractmethod
    def error(self, info: ErrorInfo) -> bytes:
        """Renders an error that ends the stream, of this server and not of the turn."""


class Collector(ABC):
    """Collects one answer that is sent whole."""

    @abstractmethod
    def start(self, prepared: Sequence[Prepared]) -> None:
        """Starts the answer. Called once, first. `prepared`: one for each choice."""

    @abstractmethod
    def add(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        """Takes the next events of one choice."""

    @abstractmethod
    def body(self) -> bytes:
        """Returns the JSON document. Called once, after every choice's Finish."""


class ParsedRequest(Struct, frozen=True, kw_only=True):
    """A parsed request. Each API has a subclass, and another for answers that are also stored."""

    conversation: Conversation
    """Its `model` is as the client spelled it; "" if absent."""
    stream: bool
    """Whether the answer is streamed."""
    notes: Sequence[str] = ()
    """Parts of the request that this server ignores because it lacks them, for a response header
    and the log."""
    choices: int = 1
    """The number of choices of each prompt."""
    may_shorten: bool = False
    """Whether the oldest messages of the conversation are dropped if it exceeds the context window
    and is the only one."""

    @property
    def conversations(self) -> Sequence[Conversation]:
        """One for each choice of the answer, by prompt. All have the same `model`."""
        return (self.conversation,)

    def renderer(self, answer: RenderInfo) -> Renderer:
        """Returns the renderer of the streamed answer."""
        raise NotImplementedError

    def collector(self, answer: RenderInfo) -> Collector:
        """Returns the collector of the whole answer."""
        raise NotImplementedError


@final
class ApiDialect(Struct, frozen=True):
    """One API that creates turns."""

    name: str
    """Its name in metrics and logs."""
    keepalive: bytes
    """Bytes that clients ignore. They may be sent between any two events of a stream."""
