"""The JSON of what the Messages API returns: content blocks, messages and other documents, as typed
Structs."""

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from services.frontend.apis.shared.field_types import JsonObject


class TextContent(Struct, tag="text"):
    text: str


class ThinkingContent(Struct, tag="thinking"):
    """A thought; the signature restores it where the client sends it back without its text."""

    thinking: str
    signature: str


class ToolUseContent(Struct, tag="tool_use"):
    """A call for the client to run."""

    id: str
    name: str
    input: JsonObject
    caller: dict[str, str]


class ServerToolUseContent(ToolUseContent, tag="server_tool_use"):
    """A call that this server runs."""


class WebSearchContent(Struct, tag="web_search_tool_result"):
    """Pages found, or an error."""

    tool_use_id: str
    caller: dict[str, str]
    content: list[dict[str, Any]] | dict[str, Any]


class WebFetchContent(Struct, tag="web_fetch_tool_result"):
    """A page, or an error."""

    tool_use_id: str
    caller: dict[str, str]
    content: dict[str, Any]


class ToolSearchContent(Struct, tag="tool_search_tool_result"):
    """Tools found, or an error."""

    tool_use_id: str
    content: dict[str, Any]


class CompactionContent(Struct, tag="compaction"):
    """The summary of everything before it; null where the model wrote none."""

    content: str | None
    encrypted_content: str | None = None
    signature: str | UnsetType = UNSET
    tool_changes: list[dict[str, Any]] | UnsetType = UNSET
    """The changes of the list of tools in the summarized messages. This and the signature are
    members of an answer to a request with `compaction`."""


HostedContent: TypeAlias = WebSearchContent | WebFetchContent | ToolSearchContent
"""The result of a tool that this server ran."""
AnswerContent: TypeAlias = (
    TextContent
    | ThinkingContent
    | ToolUseContent
    | ServerToolUseContent
    | HostedContent
    | CompactionContent
)


class MessagesUsage(Struct, kw_only=True):
    """Token counts; `input_tokens` excludes those that were read from the cache."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    cache_creation: dict[str, int] | UnsetType = UNSET
    output_tokens: int
    service_tier: str | UnsetType = UNSET
    output_tokens_details: dict[str, int] | UnsetType = UNSET
    server_tool_use: dict[str, int] | UnsetType = UNSET
    iterations: list[dict[str, Any]] | UnsetType = UNSET


class AnswerUsage(MessagesUsage, kw_only=True):
    cache_creation: dict[str, int]
    service_tier: str
    output_tokens_details: dict[str, int]


StopReason: TypeAlias = Literal[
    "end_turn",
    "tool_use",
    "max_tokens",
    "stop_sequence",
    "model_context_window_exceeded",
    "pause_turn",
    "compaction",
]


class AppliedEdits(Struct):
    """The edits of the request's `context_management` that cleared something."""

    applied_edits: list[dict[str, Any]]


class StartedAnswer(Struct, kw_only=True):
    """The answer of a turn that has started."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerContent]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    stop_details: None = None
    """Anthropic's reason of a refusal; there are none."""
    usage: MessagesUsage
    diagnostics: dict[str, Any] | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    token_logprobs: list[float | None] | UnsetType = UNSET
    context_management: AppliedEdits | UnsetType = UNSET


class MessagesAnswer(StartedAnswer, kw_only=True):
    stop_reason: StopReason
    usage: AnswerUsage


class OriginalTokens(Struct):
    """The size of a prompt without the edits of `context_management`."""

    original_input_tokens: int


class MessagesTokens(Struct):
    """The exact size of a prompt."""

    input_tokens: int
    context_management: OriginalTokens | UnsetType = UNSET
