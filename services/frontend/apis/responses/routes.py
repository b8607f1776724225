"""The Responses API: its answers as types, and its operations."""

from functools import partial
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from services.frontend.apis.responses import wire
from services.frontend.apis.responses.errors import error_reply
from services.frontend.apis.responses.state.server import PATH, RESPONSES, ResponsesServer
from services.frontend.apis.shared.mount import Api, Mount, Operation, Query
from services.frontend.apis.shared.shared_errors import OPENAI


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


_response = partial(Operation, id="The id of a response.")
_EVENTS = "^(response\\..+|error|message|tool_call_dispatch|reasoning_dispatch)$"
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_WEATHER = {"type": "function", "name": "get_weather", "parameters": _SCHEMA, "strict": False}
_EXAMPLE = {"model": "your-model", "input": "What is the weather in Paris?"}
_TURN = {**_EXAMPLE, "tools": [_WEATHER], "reasoning": {"effort": "medium"}}
_PAGE = (
    Query("limit", {"type": "integer", "minimum": 0, "maximum": 100}, "Most items to return; default: 20."),
    Query("after", {"type": "string"}, "Return the items that follow this one."),
    Query("order", {"enum": ["asc", "desc"]}, "Oldest or newest first; default: newest."),
)
_FOLLOW = (
    Query("stream", {"type": "boolean"}, "Send the events of the response again."),
    Query("starting_after", {"type": "integer", "minimum": 0}, "Leave out the events up to this sequence number."),
)
_ONE, _INPUT = f"{PATH}/{{id}}", f"{PATH}/{{id}}/input_items"


def _mount(mount: Mount) -> None:
    server = ResponsesServer(mount)
    mount.app[RESPONSES] = server
    mount.app.on_shutdown.append(server.close)
    server.add_to(mount.app.router)


API = Api(
    name="Responses",
    title="OpenAI Responses",
    errors=replace(OPENAI, reply=error_reply),
    paths=(PATH,),
    operations=(
        Operation(PATH, "Create a response", body=wire.Body, example=_TURN, answer=Answer, events=_EVENTS),
        Operation(PATH, "Open a WebSocket for responses", "get", upgrade=True),
        Operation(f"{PATH}/compact", "Compact a conversation", body=wire.Body, example=_EXAMPLE, answer=Compaction),
        Operation(
            f"{PATH}/input_tokens",
            "Count the tokens of a response's prompt",
            body=wire.Body,
            example=_EXAMPLE,
            answer=Tokens,
        ),
        _response(_ONE, "Retrieve a stored response", "get", answer=Answer, events=_EVENTS, query=_FOLLOW),
        _response(_ONE, "Delete a stored response", "delete", answer=Deleted),
        _response(f"{_ONE}/cancel", "Cancel a background response", answer=Answer),
        _response(_INPUT, "List the input of a response", "get", answer=Items, query=_PAGE),
    ),
    mount=_mount,
)
