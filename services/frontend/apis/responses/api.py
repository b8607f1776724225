"""The Responses API: its answers as types, and its operations."""

from functools import partial
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from services.frontend.apis.base import Operation, Query
from services.frontend.apis.common.shared_errors import OPENAI
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.conversations.paths import PATH as CONVERSATIONS
from services.frontend.apis.responses.conversations.paths import ConversationBody, ConversationChange, NewItems
from services.frontend.apis.responses.errors import error_reply
from services.frontend.apis.responses.server import RESPONSES, ResponsesServer
from services.frontend.http.mount import Api, Mount

PATH = "/v1/responses"


class Usage(Struct):
    """Token counts; `input_tokens` includes those that were read from the cache, `output_tokens` reasoning."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class Answer(Struct):
    """A response in any state; it also has the members of its request."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    completed_at: int | None
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    usage: Usage | None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    token_logprobs: list[float | None] | None = None


class Deleted(Struct):
    """A response that is no longer stored."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class Items(Struct):
    """A page of a response's input."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


class ConversationAnswer(Struct):
    """A conversation; its items are listed apart."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(Struct):
    """A conversation that is no longer stored."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class Tokens(Struct):
    """The exact size of a prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class Compaction(Struct):
    """A conversation as its user messages and one sealed summary."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: Usage


_of_response = partial(Operation, id="The id of a response.")
_of_conversation = partial(Operation, id="The id of a conversation.")
_EVENTS = "^(response\\..+|error|message|tool_call_dispatch|reasoning_dispatch)$"
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_EXAMPLE = {"model": "your-model", "input": "What is the weather in Paris?"}
_ITEMS = (
    Query("limit", {"type": "integer", "minimum": 0, "maximum": 100}, "Most items to return; default: 20."),
    Query("after", {"type": "string"}, "Return the items that follow this one."),
    Query("order", {"enum": ["asc", "desc"]}, "Oldest or newest first; default: newest."),
)
_FOLLOW = (
    Query("stream", {"type": "boolean"}, "Send the events of the response again."),
    Query("starting_after", {"type": "integer", "minimum": 0}, "Leave out the events up to this sequence number."),
)


def _mount(mount: Mount) -> None:
    server = ResponsesServer(mount)
    mount.app[RESPONSES] = server
    mount.app.on_shutdown.append(server.close)
    server.add_to(mount.app.router)


API = Api(
    name="Responses",
    title="OpenAI Responses",
    errors=replace(OPENAI, reply=error_reply),
    paths=("/v1/responses", CONVERSATIONS),
    operations=(
        Operation(
            PATH,
            "Create a response",
            body=wire.Body,
            example={
                **_EXAMPLE,
                "tools": [{"type": "function", "name": "get_weather", "parameters": _SCHEMA, "strict": False}],
                "reasoning": {"effort": "medium"},
            },
            answer=Answer,
            events=_EVENTS,
        ),
        Operation(PATH, "Open a WebSocket for responses", method="get", upgrade=True),
        Operation(
            "/v1/responses/compact", "Compact a conversation", body=wire.Body, example=_EXAMPLE, answer=Compaction
        ),
        Operation(
            "/v1/responses/input_tokens",
            "Count the tokens of a response's prompt",
            body=wire.Body,
            example=_EXAMPLE,
            answer=Tokens,
        ),
        _of_response(
            "/v1/responses/{id}",
            "Retrieve a stored response",
            method="get",
            answer=Answer,
            events=_EVENTS,
            query=_FOLLOW,
        ),
        _of_response("/v1/responses/{id}", "Delete a stored response", method="delete", answer=Deleted),
        _of_response("/v1/responses/{id}/cancel", "Cancel a background response", answer=Answer),
        _of_response(
            "/v1/responses/{id}/input_items", "List the input of a response", method="get", answer=Items, query=_ITEMS
        ),
        Operation(
            CONVERSATIONS,
            "Create a conversation",
            body=ConversationBody,
            example={"items": [{"type": "message", "role": "user", "content": "Hello."}]},
            answer=ConversationAnswer,
        ),
        _of_conversation("/v1/conversations/{id}", "Retrieve a conversation", method="get", answer=ConversationAnswer),
        _of_conversation(
            "/v1/conversations/{id}",
            "Change the metadata of a conversation",
            body=ConversationChange,
            example={"metadata": {"topic": "weather"}},
            answer=ConversationAnswer,
        ),
        _of_conversation(
            "/v1/conversations/{id}", "Delete a conversation", method="delete", answer=ConversationDeleted
        ),
        _of_conversation(
            "/v1/conversations/{id}/items", "List the items of a conversation", method="get", answer=Items, query=_ITEMS
        ),
        _of_conversation(
            "/v1/conversations/{id}/items",
            "Add items to a conversation",
            body=NewItems,
            example={"items": [{"type": "message", "role": "user", "content": "Hello."}]},
            answer=Items,
        ),
        _of_conversation(
            "/v1/conversations/{id}/items/{item}",
            "Retrieve an item of a conversation",
            method="get",
            answer=dict[str, Any],
        ),
        _of_conversation(
            "/v1/conversations/{id}/items/{item}",
            "Delete an item of a conversation",
            method="delete",
            answer=ConversationAnswer,
        ),
    ),
    mount=_mount,
)
