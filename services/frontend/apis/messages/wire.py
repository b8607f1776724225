"""The JSON of a Messages request as typed Structs.

Fields that decide neither prompt nor answer are left out and skipped (`citations`, `speed`,
`service_tier`, future betas). Values that are large or must keep their spelling (tool input, base64
data) stay raw.
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Raw, Struct

from services.frontend.apis.shared.field_types import NULL, Integer, JsonObject, Limit, raw_default
from services.frontend.apis.shared.sampling_fields import Nvext, SamplingFields

UNSEALED = "unsealed"
"""Signature of reasoning without a seal: clients drop thinking with an empty signature."""


class CacheControl(Struct, tag="ephemeral"):
    """Marks the end of a prefix that the client will send again. Every prefix is cached; the time
    is a hint."""

    ttl: Literal["5m", "1h"] | None = None


class Cacheable(Struct, kw_only=True):
    """A part of the prompt that may end such a prefix."""

    cache_control: CacheControl | None = None


class TextBlock(Cacheable, tag="text"):
    text: str


class Base64Source(Struct, tag="base64"):
    """Inline bytes."""

    data: Annotated[Raw, Meta(extra_json_schema={"type": "string", "contentEncoding": "base64"})]
    media_type: str


class UrlSource(Struct, tag="url"):
    url: str


class FileSource(Struct, tag="file"):
    """A reference to the Files API, which this server lacks."""

    file_id: str = ""


class PlainSource(Struct, tag="text"):
    data: str


class ImageTransformations(Struct):
    """What happens to an image that is larger than the model's images."""

    oversized_image: Literal["downsize", "error"] | None = None


class ImageBlock(Cacheable, tag="image"):
    source: Base64Source | UrlSource | FileSource
    transformations: ImageTransformations | None = None


class ContentSource(Struct, tag="content"):
    """A document made of blocks."""

    content: str | list[TextBlock | ImageBlock]


class DocumentBlock(Cacheable, tag="document"):
    """A document: text, blocks, PDF or a reference."""

    source: Base64Source | UrlSource | FileSource | PlainSource | ContentSource
    title: str | None = None
    context: str | None = None


class SearchResultBlock(Cacheable, tag="search_result"):
    """A passage found by the client's own search."""

    content: list[TextBlock]
    source: str = ""
    title: str = ""


class ThinkingBlock(Struct, tag="thinking"):
    """Thinking that the client returns. Agents also send an empty signature or none."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Struct, tag="redacted_thinking"):
    """Thinking that the client returns, with its text only in the seal."""

    data: str


class ToolUseBlock(Cacheable, tag="tool_use"):
    """A call of the assistant."""

    id: str
    name: str
    input: JsonObject


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


class ToolResultBlock(Cacheable, tag="tool_result"):
    tool_use_id: str
    content: str | list[ResultBlock] | None = None
    is_error: bool | None = None


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


class HostedResultBlock(Struct):
    """The result of a tool that this or another server ran."""

    tool_use_id: str = ""
    content: Raw = NULL


class WebSearchResultBlock(HostedResultBlock, tag="web_search_tool_result"):
    """Web pages found."""


class WebFetchResultBlock(HostedResultBlock, tag="web_fetch_tool_result"):
    """A web page."""


class ToolSearchResultBlock(HostedResultBlock, tag="tool_search_tool_result"):
    """Tools found."""


ServedResultBlock: TypeAlias = WebSearchResultBlock | WebFetchResultBlock | ToolSearchResultBlock
"""The result of a tool that this server can run."""


class CodeExecutionResultBlock(HostedResultBlock, tag="code_execution_tool_result"):
    """Output of a program."""


class BashExecutionResultBlock(HostedResultBlock, tag="bash_code_execution_tool_result"):
    """Output of a command."""


class EditorExecutionResultBlock(HostedResultBlock, tag="text_editor_code_execution_tool_result"):
    """Result of an edit."""


class McpResultBlock(HostedResultBlock, tag="mcp_tool_result"):
    """Answer of an MCP tool."""


class McpListingBlock(HostedResultBlock, tag="mcp_tool_listing"):
    """Tools of an MCP server."""


class AdvisorResultBlock(HostedResultBlock, tag="advisor_tool_result"):
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

    definition: "MessagesTool"


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
    signature: str | None = None
    """Set in the block that answers a request with `compaction`; it must be the first block."""
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


class MessagesMessage(Struct):
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


class MessagesTool(Cacheable):
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


class MessagesToolChoice(Struct):
    """Which tools to call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesThinking(Struct):
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
    skills: list[Raw] | None = None


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


class Summarize(Struct):
    """The answer is only a summary of the conversation."""

    type: Literal["summarize"]
    instructions: str | None = None


class ThreadCreate(Struct, tag="create"):
    """The conversation and the answer are stored under the answer's id."""


class ThreadContinue(Struct, tag="continue"):
    """The request has only what follows an earlier answer."""

    previous_message_id: str


Thread: TypeAlias = ThreadCreate | ThreadContinue


class MessagesBody(SamplingFields, kw_only=True):
    """The request. Sampling parameters that Messages lacks are taken in vLLM's spelling."""

    messages: list[MessagesMessage]
    model: str = ""
    max_tokens: Annotated[
        Limit | None, Meta(extra_json_schema={"type": "integer", "minimum": 0})
    ] = None
    system: str | list[TextBlock] | None = None
    stream: bool | None = None
    stop_sequences: Annotated[
        list[str] | None, Meta(extra_json_schema={"items": {"minLength": 1}})
    ] = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: MessagesThinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    metadata: Metadata | None = None
    container: str | Container | None = None
    mcp_servers: Annotated[list[Raw] | None, Meta(extra_json_schema={"maxItems": 0})] = None
    thread: Thread | None = None
    compaction: Summarize | None = None
    context_management: ContextManagement | None = None
    diagnostics: Diagnostics | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    priority: Integer | None = None
    cache_salt: str | None = None
    cache_control: CacheControl | None = None
    nvext: Nvext | None = None
