"""The types of the answers of the Messages API, and its operations."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from schemas.conversation import Conversation
from schemas.events import TurnEvent
from services.frontend.apis.messages import wire
from services.frontend.apis.messages.errors import ANTHROPIC
from services.frontend.apis.messages.request import Messages, MessagesAsk, apply_context_edits, compact
from services.frontend.apis.shared.mount import Api, Mount, Operation
from services.frontend.http.middleware import RequestContext
from services.frontend.turns.side_turn import run_side_turn

PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"


class TextContent(Struct, tag="text"):
    """Text."""

    text: str


class ThinkingContent(Struct, tag="thinking"):
    """A thought; the signature restores it where the client sends it back without its text."""

    thinking: str
    signature: str


class ToolUseContent(Struct, tag="tool_use"):
    """A call for the client to run."""

    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, Any]


class ServerToolUseContent(ToolUseContent, tag="server_tool_use"):
    """A call that this server runs."""


class WebSearchContent(Struct, tag="web_search_tool_result"):
    """Pages found, or an error."""

    tool_use_id: str
    content: list[dict[str, Any]] | dict[str, Any]
    caller: dict[str, Any]


class WebFetchContent(Struct, tag="web_fetch_tool_result"):
    """A page, or an error."""

    tool_use_id: str
    content: dict[str, Any]
    caller: dict[str, Any]


class CompactionContent(Struct, tag="compaction"):
    """The summary of everything before it; null where the model wrote none."""

    content: str | None
    encrypted_content: str | None


Content: TypeAlias = (
    TextContent
    | ThinkingContent
    | ToolUseContent
    | ServerToolUseContent
    | WebSearchContent
    | WebFetchContent
    | CompactionContent
)


class Usage(Struct):
    """Token counts; `input_tokens` excludes those that were read from the cache."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: dict[str, int]
    service_tier: str
    output_tokens_details: dict[str, int]
    server_tool_use: dict[str, int] | None = None
    iterations: list[dict[str, Any]] | None = None


class Answer(Struct):
    """A turn of the assistant."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Content]
    stop_reason: Literal[
        "end_turn",
        "tool_use",
        "max_tokens",
        "stop_sequence",
        "model_context_window_exceeded",
        "pause_turn",
        "compaction",
    ]
    stop_sequence: str | None
    usage: Usage
    context_management: dict[str, Any] | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    token_logprobs: list[float | None] | None = None


class Tokens(Struct):
    """The exact size of a prompt."""

    input_tokens: int
    context_management: dict[str, int] | None = None


_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
_EXAMPLE = {
    "model": "your-model",
    "max_tokens": 1024,
    "system": "You are a helpful agent.",
    "messages": [
        _QUESTION,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should look.", "signature": ""},
                {"type": "tool_use", "id": "toolu_01", "name": "get_weather", "input": {"city": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_01", "content": "18 degrees, sunny"}],
        },
    ],
    "tools": [{"name": "get_weather", "description": "Current weather.", "input_schema": _SCHEMA}],
    "thinking": {"type": "adaptive"},
}
_EVENTS = (
    "^(message_(start|delta|stop)|content_block_(start|delta|stop)|ping|error|tool_call_dispatch|reasoning_dispatch)$"
)


def _mount(mount: Mount) -> None:
    messages = Messages(mount.config.served_tools)

    async def prepare(ask: MessagesAsk) -> MessagesAsk:
        return await apply_context_edits(ask, mount.count)

    async def prepare_turn(ask: MessagesAsk, context: RequestContext) -> MessagesAsk:
        async def write(conversation: Conversation) -> Sequence[TurnEvent]:
            return await run_side_turn(mount.server, conversation, context, messages.name)

        ask = await prepare(ask)
        if ask.compact is None:
            return ask
        return await compact(ask, mount.count, mount.server.card(ask.conversation.model).max_model_len, write)

    mount.add_turns(PATH, messages, prepare_turn)
    mount.add_count(COUNT_PATH, messages.parse_count, messages.count_body, prepare)


API = Api(
    name="Messages",
    title="Anthropic Messages",
    errors=ANTHROPIC,
    paths=("/v1/messages",),
    operations=(
        Operation(
            PATH,
            "Create a message",
            body=wire.Body,
            required=("model", "max_tokens"),
            example=_EXAMPLE,
            answer=Answer,
            events=_EVENTS,
        ),
        Operation(
            COUNT_PATH,
            "Count the tokens of a message's prompt",
            body=wire.Body,
            required=("model",),
            example={"model": "your-model", "messages": [_QUESTION]},
            answer=Tokens,
        ),
    ),
    mount=_mount,
    enabled=lambda config: config.enable_anthropic_api,
)
