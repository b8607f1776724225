"""Every operation that the frontend serves, as data."""

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from services.frontend.dialects.chat import wire as chat_wire
from services.frontend.dialects.completions import wire as completions_wire
from services.frontend.dialects.messages import wire as messages_wire
from services.frontend.dialects.responses import wire as responses_wire
from services.frontend.openapi import answers

Method: TypeAlias = Literal["get", "post", "delete"]
Errors: TypeAlias = Literal["anthropic", "openai", "shared", "none"]

JSON = "application/json"
STREAM = "text/event-stream"
PLAIN = "text/plain"
METRICS = "application/openmetrics-text"

ID = "The id of a response."
MODEL = "A model's name or alias; a slash in it may be escaped or not."


class Text(Struct):
    """Text to tokenize, or a Messages request."""

    model: str = ""
    prompt: str | None = None
    text: str | None = None
    messages: list[messages_wire.Message] | None = None
    add_special_tokens: bool = True


_DISPATCH = "tool_call_dispatch|reasoning_dispatch"
MESSAGES_EVENTS = f"^(message_(start|delta|stop)|content_block_(start|delta|stop)|ping|error|{_DISPATCH})$"
OPENAI_EVENTS = f"^(message|{_DISPATCH})$"
RESPONSES_EVENTS = f"^(response\\..+|error|message|{_DISPATCH})$"


class Ids(Struct):
    """Token ids."""

    tokens: list[int]
    model: str = ""


class Query(Struct, frozen=True):
    """A parameter of the query string."""

    name: str
    schema: dict[str, Any]
    description: str


class Operation(Struct, frozen=True):
    """What one method of one path does."""

    method: Method
    path: str
    tag: str
    summary: str
    errors: Errors
    answer: Any = None
    """Type of the JSON answer."""
    body: Any = None
    """Type of the request's body."""
    needs: tuple[str, ...] = ()
    """Members of the body that its type leaves optional and this operation does not."""
    events: str = ""
    """The answer may also be a stream of events: a pattern of their names ("message" where they have none)."""
    text: bool = False
    """The answer is text, and no JSON."""
    query: tuple[Query, ...] = ()
    path_parameter: str = ""
    """What `{id}` is."""
    unavailable: bool = False
    """The same answer comes with status 503 while the server cannot do its work."""
    cached: bool = False
    """The answer has an ETag, and may be 304."""
    upgrade: bool = False
    """A WebSocket begins here; whoever does not ask for one gets 426."""
    open: bool = False
    """No key is needed."""


_PAGE = (
    Query("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "Most entries to return; default: all."),
    Query("after_id", {"type": "string"}, "Return what follows this entry."),
    Query("before_id", {"type": "string"}, "Return what precedes this entry."),
    Query("lifecycle", {"enum": ["active", "deprecated", "retired"]}, "Only models in this state."),
)
_ITEMS = (
    Query("limit", {"type": "integer", "minimum": 0, "maximum": 100}, "Most items to return; default: 20."),
    Query("after", {"type": "string"}, "Return what follows this item."),
    Query("order", {"enum": ["asc", "desc"]}, "Oldest or newest first; default: newest."),
)
_FOLLOW = (
    Query("stream", {"type": "boolean"}, "Send the events of the response again."),
    Query("starting_after", {"type": "integer", "minimum": 0}, "Leave out the events up to this sequence number."),
)


def _messages(path: str, summary: str, answer: Any, **options: Any) -> Operation:
    return Operation("post", path, "Anthropic Messages", summary, "anthropic", answer, messages_wire.Body, **options)


def _openai(path: str, summary: str, answer: Any, body: Any) -> Operation:
    return Operation("post", path, "OpenAI Chat Completions", summary, "openai", answer, body, events=OPENAI_EVENTS)


def _responses(method: Method, path: str, summary: str, answer: Any, **options: Any) -> Operation:
    parameter = ID if "{id}" in path else ""
    return Operation(method, path, "OpenAI Responses", summary, "openai", answer, path_parameter=parameter, **options)


def _models(path: str, summary: str, answer: Any, **options: Any) -> Operation:
    return Operation("get", path, "Models", summary, "shared", answer, cached=True, **options)


def _tokens(path: str, summary: str, answer: Any, body: Any) -> Operation:
    return Operation("post", path, "Tokens", summary, "shared", answer, body)


def _probe(path: str, summary: str, answer: Any, **options: Any) -> Operation:
    return Operation("get", path, "Health", summary, "none", answer, open=True, **options)


OPERATIONS = (
    _messages(
        "/v1/messages", "Create a message", answers.MessageAnswer, events=MESSAGES_EVENTS, needs=("model", "max_tokens")
    ),
    _messages(
        "/v1/messages/count_tokens", "Count the tokens of a message's prompt", answers.MessageTokens, needs=("model",)
    ),
    _openai("/v1/chat/completions", "Create a chat completion", answers.ChatAnswer, chat_wire.Body),
    _openai("/v1/completions", "Continue a text", answers.CompletionAnswer, completions_wire.Body),
    _responses(
        "post",
        "/v1/responses",
        "Create a response",
        answers.ResponseAnswer,
        body=responses_wire.Body,
        events=RESPONSES_EVENTS,
    ),
    _responses("get", "/v1/responses", "Open a WebSocket for responses", None, upgrade=True),
    _responses(
        "post", "/v1/responses/compact", "Compact a conversation", answers.ResponseCompaction, body=responses_wire.Body
    ),
    _responses(
        "post",
        "/v1/responses/input_tokens",
        "Count the tokens of a response's prompt",
        answers.ResponseTokens,
        body=responses_wire.Body,
    ),
    _responses(
        "get",
        "/v1/responses/{id}",
        "Retrieve a stored response",
        answers.ResponseAnswer,
        events=RESPONSES_EVENTS,
        query=_FOLLOW,
    ),
    _responses("delete", "/v1/responses/{id}", "Forget a stored response", answers.ResponseDeleted),
    _responses("post", "/v1/responses/{id}/cancel", "Cancel a background response", answers.ResponseAnswer),
    _responses(
        "get",
        "/v1/responses/{id}/input_items",
        "List what a response was made from",
        answers.ResponseItems,
        query=_ITEMS,
    ),
    _models("/v1/models", "List the models", answers.ModelPage, query=_PAGE),
    _models("/v1/models/{id}", "Describe a model", answers.ModelAnswer, path_parameter=MODEL),
    _models("/codex/models.json", "The models as Codex' catalogue", answers.CodexCatalogue),
    *(
        operation
        for prefix in ("/v1", "")
        for operation in (
            _tokens(f"{prefix}/tokenize", "Ids of a text or of a Messages request's prompt", answers.TokenIds, Text),
            _tokens(f"{prefix}/detokenize", "The text of ids", answers.PlainPrompt, Ids),
        )
    ),
    _probe("/live", "Whether the process should go on", answers.Probe, unavailable=True),
    _probe("/ready", "Whether a turn can be served", answers.Probe, unavailable=True),
    _probe("/health", "What is there, and what is missing", answers.Health, unavailable=True),
    _probe("/metrics", "Metrics for Prometheus", None, text=True),
    Operation("get", "/version", "Health", "Which release this is", "shared", answers.Version),
    _probe("/", "Whom a client has reached", answers.Hello),
    _probe("/api/hello", "Whom a client has reached", answers.Hello),
    _probe("/openapi.json", "This document", dict[str, Any]),
)
"""All of them; a frontend's document has those that it serves."""
