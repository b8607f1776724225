"""The JSON of the Messages API as typed Structs: requests, answers, and the events of a stream.

Fields that decide neither prompt nor answer are left out and skipped (`citations`, `speed`,
`service_tier`, future betas). Values that are large or must keep their spelling (tool input, base64
data) stay raw.
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from services.frontend.apis.shared.decode import NULL, Integer, Limit, Refused, raw_default
from services.frontend.apis.shared.sampling_fields import Nvext, SamplingFields

_Object: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]

UNSEALED = "unsealed"
"""Signature of reasoning without a seal: clients drop thinking with an empty signature."""


class CacheControl(Struct, tag="ephemeral"):
    """Marks the end of a prefix that the client will send again. Every prefix is cached; the time
    is a hint."""

    ttl: Literal["5m", "1h"] | None = None


class TextBlock(Struct, tag="text"):
    text: str
    cache_control: CacheControl | None = None


class Base64Source(Struct, tag="base64"):
    """Inline bytes, of which only the size is used."""

    data: Annotated[Raw, Meta(extra_json_schema={"type": "string", "contentEncoding": "base64"})]
    media_type: str


class UrlSource(Struct, tag="url"):
    url: str


class FileSource(Struct, tag="file"):
    """A reference to the Files API, which this server lacks."""

    file_id: str = ""


class PlainSource(Struct, tag="text"):
    data: str


class ImageBlock(Struct, tag="image"):
    source: Base64Source | UrlSource | FileSource
    cache_control: CacheControl | None = None


class ContentSource(Struct, tag="content"):
    """A document made of blocks."""

    content: str | list[TextBlock | ImageBlock]


class DocumentBlock(Struct, tag="document"):
    """A document: text, blocks, PDF or a reference."""

    source: Base64Source | UrlSource | FileSource | PlainSource | ContentSource
    title: str | None = None
    context: str | None = None
    cache_control: CacheControl | None = None


class SearchResultBlock(Struct, tag="search_result"):
    """A passage found by the client's own search."""

    content: list[TextBlock]
    source: str = ""
    title: str = ""
    cache_control: CacheControl | None = None


class ThinkingBlock(Struct, tag="thinking"):
    """Thinking that the client returns. Agents also send an empty signature or none."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Struct, tag="redacted_thinking"):
    """Thinking that the client returns, with its text only in the seal."""

    data: str


class ToolUseBlock(Struct, tag="tool_use"):
    """A call of the assistant."""

    id: str
    name: str
    input: _Object
    cache_control: CacheControl | None = None


class ToolReferenceBlock(Struct, tag="tool_reference"):
    """Loads a deferred tool."""

    tool_name: str


class BrowserStateBlock(Struct, tag="browser_state"):
    """Tabs of the client's browser after a call."""

    tabs: Raw
    state_changes: Raw = NULL


ResultBlock: TypeAlias = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolReferenceBlock
    | BrowserStateBlock
)


class ToolResultBlock(Struct, tag="tool_result"):
    tool_use_id: str
    content: str | list[ResultBlock] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


class HostedUse(Struct):
    """A call of a tool that this server ran, or that another server ran earlier in the
    conversation."""

    id: str = ""
    name: str = ""
    input: Raw = raw_default(b"{}")


class ServerToolUseBlock(HostedUse, tag="server_tool_use"):
    """web_search, web_fetch, code_execution, …"""


class McpToolUseBlock(HostedUse, tag="mcp_tool_use"):
    """A tool of an MCP server that the API called."""


class HostedResult(Struct):
    """The result of a tool that this or another server ran."""

    tool_use_id: str = ""
    content: Raw = NULL


class WebSearchResultBlock(HostedResult, tag="web_search_tool_result"):
    """Web pages found."""


class WebFetchResultBlock(HostedResult, tag="web_fetch_tool_result"):
    """A web page."""


class CodeExecutionResultBlock(HostedResult, tag="code_execution_tool_result"):
    """Output of a program."""


class BashExecutionResultBlock(HostedResult, tag="bash_code_execution_tool_result"):
    """Output of a command."""


class EditorExecutionResultBlock(HostedResult, tag="text_editor_code_execution_tool_result"):
    """Result of an edit."""


class ToolSearchResultBlock(HostedResult, tag="tool_search_tool_result"):
    """Tools found."""


class McpResultBlock(HostedResult, tag="mcp_tool_result"):
    """Answer of an MCP tool."""


class McpListingBlock(HostedResult, tag="mcp_tool_listing"):
    """Tools of an MCP server."""


class AdvisorResultBlock(HostedResult, tag="advisor_tool_result"):
    """Advice of another model."""


class FallbackBlock(Struct, tag="fallback"):
    """Another model took over; not part of the prompt."""


class ContainerUploadBlock(Struct, tag="container_upload"):
    """A file for a code-execution container, which this server lacks."""


class NamedTool(Struct, tag="tool_reference"):
    """A change of the tool set that names a declared tool."""

    name: str


class ToolDefinition(Struct, tag="tool_definition"):
    """A change of the tool set that defines the tool."""

    definition: "Tool"


class McpTool(Struct, tag="mcp_tool_reference"):
    """A change of an MCP server's tools, which this server has none of."""


class McpToolset(Struct, tag="mcp_toolset_reference"):
    """A change of an MCP server's tools, which this server has none of."""


ChangedTool: TypeAlias = NamedTool | ToolDefinition | McpTool | McpToolset


class ToolAdditionBlock(Struct, tag="tool_addition"):
    """A tool is available from here on."""

    tool: ChangedTool


class ToolRemovalBlock(Struct, tag="tool_removal"):
    """A tool is no longer available from here on."""

    tool: ChangedTool


class CompactionBlock(Struct, tag="compaction"):
    """Replaces everything before it. `content` None: the compaction failed, the block is
    ignored."""

    content: str | None = None
    tool_changes: list[ToolAdditionBlock | ToolRemovalBlock] | None = None


HostedBlock: TypeAlias = (
    ServerToolUseBlock
    | McpToolUseBlock
    | WebSearchResultBlock
    | WebFetchResultBlock
    | CodeExecutionResultBlock
    | BashExecutionResultBlock
    | EditorExecutionResultBlock
    | ToolSearchResultBlock
    | McpResultBlock
    | McpListingBlock
    | AdvisorResultBlock
)

Block: TypeAlias = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | HostedBlock
    | FallbackBlock
    | ContainerUploadBlock
    | CompactionBlock
    | ToolAdditionBlock
    | ToolRemovalBlock
)

Effort: TypeAlias = Literal["low", "medium", "high", "xhigh", "max"]


class MessageOutput(Struct):
    """A system message's effort."""

    effort: Effort | None = None


class Message(Struct):
    """One message; `system` may be anywhere among them."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        str | list[Block] | None,
        Meta(
            extra_json_schema={
                "description": "Only a system message with `output_config` may have none."
            }
        ),
    ] = None
    clear_at: Literal["next_user_message", "never"] | None = None
    output_config: MessageOutput | None = None


class Tool(Struct):
    """A tool of any kind, by its `type`."""

    name: Annotated[str, Meta(extra_json_schema={"minLength": 1})] = ""
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    input_examples: list[Raw] | None = None
    max_uses: Integer | None = None
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None
    user_location: dict[str, Any] | None = None
    max_content_tokens: Integer | None = None
    url_sources: Any = None
    cache_control: CacheControl | None = None


class ToolChoice(Struct):
    """Which tools to call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct):
    """The client's thinking settings."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Integer | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None


class JsonFormat(Struct, tag="json_schema"):
    """The answer's text must be JSON that fits the schema."""

    schema: dict[str, Any]


class OutputConfig(Struct):
    """Effort and format of the answer."""

    effort: Effort | None = None
    format: JsonFormat | None = None


class Metadata(Struct):
    """The end user."""

    user_id: str | None = None


class Container(Struct):
    """The container of the code-execution tool."""

    id: str | None = None


class Threshold(Struct):
    """A size of the prompt."""

    type: Literal["input_tokens", "tool_uses"]
    value: Limit


class ContextEdit(Struct):
    """A change of the history that the model sees."""

    type: str
    keep: Any = None
    trigger: Threshold | None = None
    clear_at_least: Threshold | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None
    pause_after_compaction: bool | None = None
    instructions: str | None = None


class ContextManagement(Struct):
    """Changes to a long history."""

    edits: list[ContextEdit] | None = None


class Diagnostics(Struct):
    """The earlier answer that the prompt is compared with; null: only later ones are compared with
    this one."""

    previous_message_id: str | None = None


class Body(SamplingFields, kw_only=True):
    """The request. Sampling parameters that Messages lacks are taken in vLLM's spelling."""

    messages: Annotated[list[Message], Meta(extra_json_schema={"minItems": 1})]
    model: str = ""
    max_tokens: Annotated[
        Limit | None, Meta(extra_json_schema={"type": "integer", "minimum": 0})
    ] = None
    system: str | list[TextBlock] | None = None
    stream: bool | None = None
    stop_sequences: Annotated[
        list[str] | None, Meta(extra_json_schema={"items": {"minLength": 1}})
    ] = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    metadata: Metadata | None = None
    container: str | Container | None = None
    mcp_servers: Annotated[list[Raw] | None, Meta(extra_json_schema={"maxItems": 0})] = None
    thread: Refused = NULL
    compaction: Refused = NULL
    context_management: ContextManagement | None = None
    diagnostics: Diagnostics | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    priority: Integer | None = None
    cache_salt: str | None = None
    cache_control: CacheControl | None = None
    nvext: Nvext | None = None


# Answers.


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
    input: _Object
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


class CompactionContent(Struct, tag="compaction"):
    """The summary of everything before it; null where the model wrote none."""

    content: str | None
    encrypted_content: str | None = None


Content: TypeAlias = (
    TextContent
    | ThinkingContent
    | ToolUseContent
    | ServerToolUseContent
    | WebSearchContent
    | WebFetchContent
    | CompactionContent
)


class Usage(Struct, kw_only=True):
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


class AnswerUsage(Usage, kw_only=True):
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
    content: list[Content]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    stop_details: None = None
    """Anthropic's reason of a refusal; there are none."""
    usage: Usage
    diagnostics: dict[str, Any] | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    token_logprobs: list[float | None] | UnsetType = UNSET
    context_management: AppliedEdits | UnsetType = UNSET


class Answer(StartedAnswer, kw_only=True):
    stop_reason: StopReason
    usage: AnswerUsage


class OriginalTokens(Struct):
    """The size of a prompt without the edits of `context_management`."""

    original_input_tokens: int


class Tokens(Struct):
    """The exact size of a prompt."""

    input_tokens: int
    context_management: OriginalTokens | UnsetType = UNSET


# Events of a stream.


class MessageStart(Struct, tag="message_start"):
    """The answer begins; it has no content yet."""

    message: StartedAnswer


class ContentBlockStart(Struct, tag="content_block_start"):
    index: int
    content_block: Content


class TextDelta(Struct, tag="text_delta"):
    text: str


class ThinkingDelta(Struct, tag="thinking_delta"):
    """A piece of a thought. With the beta `thinking-token-count`: also a piece of the number of its
    tokens, where the text is omitted, else null."""

    thinking: str
    estimated_tokens: int | UnsetType | None = UNSET


class InputJsonDelta(Struct, tag="input_json_delta"):
    """A piece of a call's input."""

    partial_json: str


class SignatureDelta(Struct, tag="signature_delta"):
    """The signature of a thought."""

    signature: str


class CompactionDelta(Struct, tag="compaction_delta"):
    """The summary, whole."""

    content: str | None
    encrypted_content: str | None = None


BlockDelta: TypeAlias = (
    TextDelta | ThinkingDelta | InputJsonDelta | SignatureDelta | CompactionDelta
)


class ContentBlockDelta(Struct, tag="content_block_delta"):
    """More of the open block."""

    index: int
    delta: BlockDelta


class ContentBlockStop(Struct, tag="content_block_stop"):
    index: int


class Stop(Struct):
    """Why the turn ended."""

    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: None = None


class MessageDelta(Struct, tag="message_delta"):
    """The end of the answer: the members of the message that are known only at the end."""

    delta: Stop
    usage: Usage
    token_ids: list[int] | UnsetType = UNSET
    token_logprobs: list[float | None] | UnsetType = UNSET
    context_management: AppliedEdits | UnsetType = UNSET


class MessageStop(Struct, tag="message_stop"):
    """Nothing follows."""


class Ping(Struct, tag="ping"):
    """A keep-alive event."""


class ToolCallDispatch(Struct, tag="ping"):
    """A complete call once more, on request.

    A `ping` by its type, since the AI SDK fails on unknown types; other clients use the event's
    name.
    """

    tool_call_dispatch: dict[str, Any]


class ReasoningDispatch(Struct, tag="ping"):
    """A finished thought once more, in the same form."""

    reasoning_dispatch: dict[str, Any]
