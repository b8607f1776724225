"""The interfaces between HTTP and an API dialect. A dialect is pure: ids and times are passed in, bytes come out.

A request becomes an `Ask` (`Dialect.parse`). The ask makes the renderer of its own answer, so the options of a request
(display of thinking, `include`, …) never pass through code of another API.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from schemas.conversation import Conversation
from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import Failed, Finish, FinishReason, Prepared, TurnEvent


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


class ErrorReply(Struct, frozen=True):
    """An error as an HTTP response of the dialect."""

    status: int
    headers: dict[str, str]
    body: bytes


def json_error(info: ErrorInfo, status: int, document: object) -> ErrorReply:
    """An error as a JSON document, with the time to wait in a header."""
    headers = {"content-type": "application/json"}
    if info.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(info.retry_after_s)))
    return ErrorReply(status, headers, msgspec.json.encode(document))


ErrorShape: TypeAlias = Callable[[ErrorInfo, str, int | None], ErrorReply]
"""Makes the response of an error. Arguments: the error, the request id, a status that overrides the error's own."""


class ErrorFormat(Struct, frozen=True):
    """How the clients of an API read errors."""

    name: Literal["anthropic", "openai", "shared"]
    schema: type
    """Type of the body."""
    statuses: frozenset[int]
    reply: ErrorShape


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


class Query(Struct, frozen=True):
    """A parameter of the query string."""

    name: str
    schema: dict[str, object]
    description: str


class Operation(Struct, frozen=True):
    """One method of one path, for the OpenAPI document."""

    path: str
    summary: str
    method: Literal["get", "post", "delete"] = "post"
    answer: object = None
    """Type of the JSON answer."""
    body: object = None
    """Type of the request's body."""
    required: tuple[str, ...] = ()
    """Members of the body that are optional in its type and required by this operation."""
    example: object = None
    """A request body to start with."""
    events: str = ""
    """The answer may also be a stream of events: a pattern of their names ("message" for events without one)."""
    text: bool = False
    """The answer is text instead of JSON."""
    query: tuple[Query, ...] = ()
    id: str = ""
    """Description of `{id}` in the path."""
    unavailable: bool = False
    """The same answer is sent with status 503 while the server cannot work."""
    cached: bool = False
    """The answer has an ETag and may be 304."""
    upgrade: bool = False
    """Opens a WebSocket; other requests get 426."""
    public: bool = False
    """Needs no key and returns no errors of its own."""


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
