"""The JSON of a Responses request, with its tools and input items, as typed Structs.

Input items and all members that the answer echoes stay raw (`Raw`): they are stored, listed and
sent back as the client spelled them, and decoded where they affect the prompt. Other fields are
skipped (`access_programs`, `image`, `stream_options`, `client_metadata`, future fields).
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Raw, Struct

from services.frontend.apis.shared.field_types import MAX_INTEGER, NULL, Integer, Limit, Name
from services.frontend.apis.shared.sampling_fields import CacheLifetime, Nvext, SamplingFields

Includable: TypeAlias = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]

JsonObjects: TypeAlias = Annotated[
    Raw, Meta(extra_json_schema={"type": "array", "items": {"type": "object"}})
]

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]
"""The client's data of a response."""


class ManagedContext(Struct):
    """An element of `context_management`."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Meta(ge=1)] | None = None


class MultiAgent(Struct):
    """Helpers that OpenAI's servers start and run; the SDK's beta."""

    enabled: bool | None = None


class ResponsesBody(SamplingFields, kw_only=True):
    """The request, with the extra fields of vLLM, SGLang and Dynamo."""

    model: str | None = None
    input: str | list[Raw] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Raw = NULL
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    include: list[Includable] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] | None = None
    max_tool_calls: Limit | None = None
    parallel_tool_calls: bool | None = None
    tools: list[Raw] | None = None
    tool_choice: Raw = NULL
    text: Raw = NULL
    reasoning: Raw = NULL
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    prompt: Raw = NULL
    prompt_cache_key: str | None = None
    prompt_cache_options: Raw = NULL
    prompt_cache_retention: str | None = None
    metadata: Metadata | None = None
    safety_identifier: str | None = None
    user: str | None = None
    service_tier: str | None = None
    context_management: list[ManagedContext] | None = None
    moderation: Raw = NULL
    multi_agent: MultiAgent | None = None
    generate: bool | None = None
    stream_id: str | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    logit_bias: dict[str, float] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: Integer | None = None
    cache_salt: str | None = None
    nvext: Nvext | None = None


Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SummaryStyle: TypeAlias = Literal["auto", "concise", "detailed", "none"]


class ResponsesReasoning(Struct):
    """`generate_summary` is the deprecated name of `summary`; `max_tokens` is OpenRouter's."""

    effort: Effort | None = None
    max_tokens: Limit | None = None
    summary: SummaryStyle | None = None
    generate_summary: SummaryStyle | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None


class Format(Struct):
    """Structured output; flat, unlike Chat's."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(Struct):
    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class CacheOptions(CacheLifetime):
    """The members of `prompt_cache_options` that this server acts on."""

    prewarm: bool | None = None
    comparison_response_id: str | None = None


class ToolFormat(Struct):
    """The form of a freeform tool's input."""

    type: str = "text"
    syntax: str | None = None
    definition: str | None = None


class ToolType(Struct):
    """The members that distinguish tools before they are decoded. `execution`: who runs a
    search."""

    type: str
    execution: Literal["server", "client"] | None = None


class ToolEnvironment(Struct):
    """The place where a shell runs: `local`, or a container of OpenAI's."""

    type: str = "local"


class SearchFilters(Struct):
    """The domains of a web search."""

    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None


class ResponsesTool(ToolType):
    """A tool of any type that can be served."""

    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    format: ToolFormat | None = None
    tools: list[Raw] | None = None
    environment: ToolEnvironment | None = None
    external_web_access: bool | None = None
    filters: SearchFilters | None = None
    user_location: dict[str, Any] | None = None


class ResponsesToolChoice(Struct):
    """A `tool_choice` that is an object."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[Raw] | None = None


class AllowedTool(Struct):
    """A tool as `allowed_tools` names it."""

    type: str
    name: str | None = None
    namespace: str | None = None


# Parts of messages and of tool results.


class PlainText(Struct, tag="text"):
    """Text under Chat's name for it."""

    text: str


class InputText(PlainText, tag="input_text"):
    pass


class OutputText(PlainText, tag="output_text"):
    pass


class Refusal(Struct, tag="refusal"):
    refusal: str


class InputImage(Struct, tag="input_image"):
    """An image: a URL or data URL."""

    image_url: str | None = None
    file_id: str | None = None


class ComputerScreenshot(InputImage, tag="computer_screenshot"):
    pass


class InputFile(Struct, tag="input_file"):
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None


class ResponsesInputAudio(Struct, tag="input_audio"):
    """Audio. Its data is not decoded; the model gets a note in its place."""


class ReasoningText(PlainText, tag="reasoning_text"):
    """A piece of reasoning."""


class SummaryText(PlainText, tag="summary_text"):
    """A piece of a reasoning summary."""


Part: TypeAlias = (
    InputText
    | PlainText
    | OutputText
    | Refusal
    | InputImage
    | InputFile
    | ResponsesInputAudio
    | ComputerScreenshot
)


class EncryptedText(Struct, tag="encrypted_content"):
    """Text from one agent to another. OpenAI's servers encrypt it; with any other server it is what
    the model wrote."""

    encrypted_content: str


AgentPart: TypeAlias = Part | EncryptedText
ReasoningPart: TypeAlias = ReasoningText | PlainText
SummaryPart: TypeAlias = SummaryText | PlainText


# Items.


class ItemKind(Struct):
    """The members that distinguish items. `type` may be missing from a message or a reference."""

    type: str | None = None
    role: str | None = None
    id: str | None = None


class ResponsesMessage(Struct):
    """A message in any of its three forms."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    id: str | None = None


class AgentMessage(Struct):
    """A message from one agent of a session to another, as a sub-agent's task and its report."""

    content: str | list[AgentPart]
    author: str | None = None
    recipient: str | None = None


class ReasoningItem(Struct):
    """Reasoning. Agents leave out its id, and send null for missing members."""

    summary: list[SummaryPart] | None = None
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = None
    id: str | None = None


class ResponsesCall(Struct, kw_only=True):
    call_id: str
    id: str | None = None


class ResponsesFunctionCall(ResponsesCall, kw_only=True):
    """A call with JSON text for arguments."""

    name: str
    arguments: str
    namespace: str | None = None


class ResponsesCustomCall(ResponsesCall, kw_only=True):
    name: str
    input: str
    namespace: str | None = None


class ShellCall(ResponsesCall, kw_only=True):
    """A call of the `shell` or `local_shell` tool."""

    action: Raw


class PatchCall(ResponsesCall, kw_only=True):
    operation: Raw


class SearchCall(Struct):
    arguments: Raw
    call_id: str | None = None
    id: str | None = None
    execution: str | None = None


class CallOutput(Struct):
    """The result of a function, a freeform tool or `local_shell`. A result of `local_shell` has the
    call's id as its `id`; older Codex sends `call_id`."""

    output: str | list[Part]
    call_id: str | None = None
    id: str | None = None
    name: str | None = None
    namespace: str | None = None


class ShellChunk(Struct):
    """The output and outcome of one command of a shell call."""

    stdout: str = ""
    stderr: str = ""
    outcome: dict[str, Any] | None = None


class ShellOutput(Struct):
    call_id: str
    output: list[ShellChunk]


class PatchOutput(Struct):
    call_id: str
    status: str | None = None
    output: str | None = None


class ComputerOutput(Struct):
    """The result of OpenAI's `computer` tool."""

    output: ComputerScreenshot


class MoreTools(Struct):
    """Tools in the input; with `call_id` and `execution`, those that a search found."""

    tools: list[Raw]
    call_id: str | None = None
    execution: str | None = None
    status: str | None = None


class ConfigurationUpdate(Struct):
    """A change of the settings in mid-conversation; the last one applies."""

    reasoning: Raw = NULL
    text: Raw = NULL


class CompactionItem(Struct):
    """A sealed summary that stands for everything before it."""

    encrypted_content: str
