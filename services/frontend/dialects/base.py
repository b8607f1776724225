"""The seam between HTTP and an API's dialect. A dialect is pure: ids and times are handed in, bytes come out.

A new API is a folder beside `messages/` with one class that fits `Dialect`; nothing else in the frontend changes. A
request goes `Dialect.parse` → `Ask`; the ask makes the renderer of its own answer, so that what a request said about
its answer (display of thinking, include options, …) never passes through code that does not know it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from schemas.conversation import Conversation
from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import Failed, Finish, FinishReason, Prepared, TurnEvent


class Reply(Struct, frozen=True):
    """All that an answer needs and a pure renderer cannot know by itself."""

    turn: str
    """The turn's id, of [0-9a-z]; object ids are made of it."""
    request_id: str
    model: str
    """The model's name as the client spelled it."""
    created: int
    """Unix time in seconds."""
    dispatch: bool = False
    """Tell of each complete tool call in an event of its own."""
    dispatch_reasoning: bool = False
    """Tell of each finished reasoning block in an event of its own."""
    now: Callable[[], float] | None = None
    """Unix time, for answers that say when they ended."""


class ErrorReply(Struct, frozen=True):
    """An error as an HTTP response of the dialect."""

    status: int
    headers: dict[str, str]
    body: bytes


class Renderer(Protocol):
    """One streamed answer. Every method returns the bytes to send next, possibly none."""

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """What opens the stream. Called once, first; one `Prepared` for each choice."""
        ...

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """The next events of one choice's turn; the last choice's Finish, and any Failed, end the stream."""
        ...

    def error(self, info: ErrorInfo) -> bytes:
        """An error that ends the stream and is no event of the turn."""
        ...


class Collector(Protocol):
    """One answer that is sent whole."""

    def start(self, prepared: Sequence[Prepared]) -> None:
        """Called once, first; one `Prepared` for each choice."""
        ...

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        """The next events of one choice's turn."""
        ...

    def body(self) -> bytes:
        """The JSON document; called once, after every choice's Finish."""
        ...


class Ask(Protocol):
    """A request as its dialect understood it."""

    @property
    def conversations(self) -> Sequence[Conversation]:
        """What is asked, in the one form of all APIs, once for each choice of the answer. `model`, of all the same, is
        as the client spelled it, "" if it named none."""
        ...

    @property
    def stream(self) -> bool:
        """Whether the answer is to be streamed."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What was left out of the request because it cannot be served here; for a response header and the log."""
        ...

    def renderer(self, reply: Reply) -> Renderer:
        """The streamed answer."""
        ...

    def collector(self, reply: Reply) -> Collector:
        """The answer in one piece."""
        ...


class Dialect(Protocol):
    """One API."""

    @property
    def name(self) -> str:
        """For metrics and logs."""
        ...

    @property
    def keepalive(self) -> bytes:
        """What the API's clients take for a sign of life; may be sent between any two events of a stream."""
        ...

    def parse(self, body: bytes, headers: Mapping[str, str]) -> Ask:
        """Understands a request. `headers` is looked up by lower-case names. Raises Invalid."""
        ...

    def error(self, info: ErrorInfo, request_id: str, status: int | None = None) -> ErrorReply:
        """An error before the first byte. `status` overrides the one that belongs to the kind."""
        ...


def failure_of(event: TurnEvent) -> ErrorInfo | None:
    """The error with which this event ends a turn; None for every other event."""
    if isinstance(event, Failed):
        return event.error
    if isinstance(event, Finish):
        if event.reason is FinishReason.CANCELLED:
            return ErrorInfo(ErrorKind.UNAVAILABLE, "The server stopped this turn. Please try again.")
        if event.reason is FinishReason.ERROR:
            return ErrorInfo(ErrorKind.ENGINE, "The engine failed in the middle of this turn.")
    return None
