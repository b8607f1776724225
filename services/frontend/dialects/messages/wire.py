"""A Messages request as it stands on the wire, as typed Structs.

Only what decides a prompt or an answer is named; every other field is skipped (`cache_control`, `citations`, `speed`,
`service_tier`, betas to come). What a client may spell in its own way (a tool's input, an image's base64) stays raw:
not decoded, not copied, not re-spelled.
"""

from typing import Any, Literal, TypeAlias

from msgspec import Raw, Struct

NULL = Raw(b"null")

UNSEALED = "unsealed"
"""Stands for a signature where there is none: clients drop thinking whose signature is empty."""


class TextBlock(Struct, tag="text"):
    """Text, wherever blocks may stand."""

    text: str


class Base64Source(Struct, tag="base64"):
    """Inline bytes; only their size goes any further."""

    data: Raw
    media_type: str = ""


class UrlSource(Struct, tag="url"):
    """Something to be fetched."""

    url: str


class FileSource(Struct, tag="file"):
    """Something in the Files API, which this server does not have."""

    file_id: str = ""


class PlainSource(Struct, tag="text"):
    """A document that is text."""

    data: str


class ImageBlock(Struct, tag="image"):
    """An image."""

    source: Base64Source | UrlSource | FileSource


class ContentSource(Struct, tag="content"):
    """A document made of blocks."""

    content: str | list[TextBlock | ImageBlock]


class DocumentBlock(Struct, tag="document"):
    """A document: text, blocks, PDF or a reference."""

    source: Base64Source | UrlSource | FileSource | PlainSource | ContentSource
    title: str | None = None
    context: str | None = None


class SearchResultBlock(Struct, tag="search_result"):
    """A passage that the client's own search found."""

    content: list[TextBlock]
    source: str = ""
    title: str = ""


class ThinkingBlock(Struct, tag="thinking"):
    """Replayed thinking. Agents also send an empty or no signature; that is no error."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Struct, tag="redacted_thinking"):
    """Replayed thinking of which only the seal is left."""

    data: str


class ToolUseBlock(Struct, tag="tool_use"):
    """A call that the assistant made."""

    id: str
    name: str
    input: Raw


class ToolReferenceBlock(Struct, tag="tool_reference"):
    """Names a deferred tool that is known from here on."""

    tool_name: str


class BrowserStateBlock(Struct, tag="browser_state"):
    """Tabs of the client's browser after a call."""

    tabs: Raw
    state_changes: Raw = NULL


ResultBlock: TypeAlias = (
    TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock | BrowserStateBlock
)


class ToolResultBlock(Struct, tag="tool_result"):
    """A tool's answer."""

    tool_use_id: str
    content: str | list[ResultBlock] | None = None
    is_error: bool | None = None


class HostedUse(Struct):
    """A call of a tool that another server ran, in a history that comes from there."""

    name: str = ""
    input: Raw = Raw(b"{}")


class ServerToolUseBlock(HostedUse, tag="server_tool_use"):
    """web_search, web_fetch, code_execution, …"""


class McpToolUseBlock(HostedUse, tag="mcp_tool_use"):
    """A tool of an MCP server that the API called."""


class HostedResult(Struct):
    """The answer of a tool that another server ran."""

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
    """Says that another model took over; nothing for the prompt."""


class ContainerUploadBlock(Struct, tag="container_upload"):
    """A file for a code-execution container, which this server does not have."""


class NamedTool(Struct, tag="tool_reference"):
    """A change of the tool set that names a declared tool."""

    name: str


class ToolDefinition(Struct, tag="tool_definition"):
    """A change of the tool set that brings the tool along."""

    definition: "Tool"


class McpTool(Struct, tag="mcp_tool_reference"):
    """A change of an MCP server's tools, which this server has none of."""


class McpToolset(Struct, tag="mcp_toolset_reference"):
    """A change of an MCP server's tools, which this server has none of."""


ChangedTool: TypeAlias = NamedTool | ToolDefinition | McpTool | McpToolset


class ToolAdditionBlock(Struct, tag="tool_addition"):
    """From here on a tool is offered."""

    tool: ChangedTool


class ToolRemovalBlock(Struct, tag="tool_removal"):
    """From here on a tool is not offered any more."""

    tool: ChangedTool


class CompactionBlock(Struct, tag="compaction"):
    """Stands for everything before it. `content` None: the compaction failed, the block says nothing."""

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
    """A system message's own word on effort."""

    effort: Effort | None = None


class Message(Struct):
    """One message; `system` may stand anywhere among them."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block] | None = None
    clear_at: Literal["next_user_message", "never"] | None = None
    output_config: MessageOutput | None = None


class Tool(Struct):
    """A tool of any kind; `type` tells which."""

    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    input_examples: list[Raw] | None = None


class ToolChoice(Struct):
    """Whether and what to call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct):
    """The client's word on thinking."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None


class JsonFormat(Struct, tag="json_schema"):
    """The answer's text must be JSON that fits the schema."""

    schema: dict[str, Any]


class OutputConfig(Struct):
    """Effort and form of the answer."""

    effort: Effort | None = None
    format: JsonFormat | None = None


class Metadata(Struct):
    """Who asks, in the client's words."""

    user_id: str | None = None


class Container(Struct):
    """Where code execution would run."""

    id: str | None = None


class ContextEdit(Struct):
    """A change of what the model is shown of the history."""

    type: str
    keep: Any = None


class ContextManagement(Struct):
    """What to leave out of a long history."""

    edits: list[ContextEdit] | None = None


class Body(Struct):
    """The request. Sampling fields that Messages does not have are taken in vLLM's and SGLang's spelling."""

    messages: list[Message]
    model: str = ""
    max_tokens: int | None = None
    system: str | list[TextBlock] | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    metadata: Metadata | None = None
    container: str | Container | None = None
    mcp_servers: list[Raw] | None = None
    thread: Raw = NULL
    compaction: Raw = NULL
    context_management: ContextManagement | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: Any = None
    cache_salt: Any = None
    nvext: Any = None
