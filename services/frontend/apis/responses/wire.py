"""The JSON of the Responses API as typed Structs: requests with their tools and items, and answers
with their items, documents and events.

Input items and all members that the answer echoes stay raw (`Raw`): they are stored, listed and
sent back as the client spelled them, and decoded where they affect the prompt. Other fields are
skipped (`access_programs`, `image`, `stream_options`, `client_metadata`, future fields).
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from services.frontend.apis.shared.decode import MAX_INTEGER, NULL, Integer, Limit, Name
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

_Object: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
_Objects: TypeAlias = Annotated[
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


class Body(SamplingFields, kw_only=True):
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
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
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


class Reasoning(Struct):
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
    type: str


class ToolEnvironment(Struct):
    """The place where a shell runs: `local`, or a container of OpenAI's."""

    type: str = "local"


class SearchFilters(Struct):
    """The domains of a web search."""

    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None


class Tool(ToolType):
    """A tool of any type that can be served."""

    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    format: ToolFormat | None = None
    tools: list[Raw] | None = None
    execution: Literal["server", "client"] | None = None
    environment: ToolEnvironment | None = None
    external_web_access: bool | None = None
    filters: SearchFilters | None = None
    user_location: dict[str, Any] | None = None


class ToolChoice(Struct):
    """A `tool_choice` that is an object."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[Raw] | None = None


class AllowedTool(Struct):
    """A tool as `allowed_tools` names it."""

    type: str = "function"
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


class InputAudio(Struct, tag="input_audio"):
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
    | InputAudio
    | ComputerScreenshot
)


# Items.


class ItemKind(Struct):
    """The members that distinguish items. `type` may be missing from a message or a reference."""

    type: str | None = None
    role: str | None = None
    id: str | None = None


class Message(Struct):
    """A message in any of its three forms."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    id: str | None = None


class ReasoningItem(Struct):
    """Reasoning. Agents leave out its id, and send null for missing members."""

    summary: list[SummaryText] | None = None
    content: list[ReasoningText | PlainText] | None = None
    encrypted_content: str | None = None
    id: str | None = None


class Call(Struct, kw_only=True):
    call_id: str
    id: str | None = None


class FunctionCall(Call, kw_only=True):
    """A call with JSON text for arguments."""

    name: str
    arguments: str
    namespace: str | None = None


class CustomCall(Call, kw_only=True):
    name: str
    input: str
    namespace: str | None = None


class ShellCall(Call, kw_only=True):
    """A call of the `shell` or `local_shell` tool."""

    action: Raw


class PatchCall(Call, kw_only=True):
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


class ConfigurationUpdate(Struct):
    """A change of the settings in mid-conversation; the last one applies."""

    reasoning: Raw = NULL
    text: Raw = NULL


class CompactionItem(Struct):
    """A sealed summary that stands for everything before it."""

    encrypted_content: str


# Output items, as events and Responses have them. `type` follows `id`, as in the native API, so it
# is a member and not a tag.

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


class UrlCitation(Struct, tag="url_citation"):
    """A page that the text cites, and the characters that cite it; `end_index` is exclusive."""

    start_index: int
    end_index: int
    url: str
    title: str


class OutputTextPart(Struct, tag="output_text"):
    """The text of a message. `logprobs`: for each token, if requested."""

    text: str
    annotations: list[UrlCitation]
    logprobs: list[dict[str, Any]]


class OutputItem(Struct, kw_only=True):
    """The members of every item that the model or this server made."""

    id: str
    type: str


class OutputMessage(OutputItem, kw_only=True):
    """Text for the user: one part, none before its first character."""

    type: Literal["message"] = "message"
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputTextPart]


class OutputReasoning(OutputItem, kw_only=True):
    """Reasoning. `encrypted_content`: its sealed copy, if requested, or results of tools that this
    server ran."""

    type: Literal["reasoning"] = "reasoning"
    summary: list[SummaryText]
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: str | UnsetType | None = UNSET
    status: Literal["incomplete"] | UnsetType = UNSET


class OutputCall(OutputItem, kw_only=True):
    """The members of every call that the client runs."""

    status: ItemStatus
    call_id: str


class OutputFunctionCall(OutputCall, kw_only=True):
    """A call of a function; `arguments` is JSON, as the model spelled it."""

    type: Literal["function_call"] = "function_call"
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class OutputCustomCall(OutputCall, kw_only=True):
    """A call of a freeform tool; `input` is text of any form."""

    type: Literal["custom_tool_call"] = "custom_tool_call"
    name: str
    input: str
    namespace: str | UnsetType = UNSET


class OutputLocalShellCall(OutputCall, kw_only=True):
    """A command for the user's machine."""

    type: Literal["local_shell_call"] = "local_shell_call"
    action: dict[str, Any]


class ShellAction(Struct):
    """Commands that run at the same time."""

    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class OutputShellCall(OutputCall, kw_only=True):
    """Commands for the client's shell."""

    type: Literal["shell_call"] = "shell_call"
    action: ShellAction
    environment: None = None


class DeleteFile(Struct, tag="delete_file"):
    """The deletion of a file."""

    path: str


class CreateFile(DeleteFile, tag="create_file"):
    """A new file; `diff` has its content."""

    diff: str


class UpdateFile(CreateFile, tag="update_file"):
    """A change of a file."""


PatchOperation: TypeAlias = CreateFile | UpdateFile | DeleteFile


class OutputPatchCall(OutputCall, kw_only=True):
    """A change of one file."""

    type: Literal["apply_patch_call"] = "apply_patch_call"
    operation: PatchOperation


class OutputToolSearchCall(OutputCall, kw_only=True):
    """A search of the client's tools."""

    type: Literal["tool_search_call"] = "tool_search_call"
    arguments: _Object
    execution: Literal["client"] = "client"


class SearchSource(Struct, tag="url"):
    """A page that a search found."""

    url: str


class SearchAction(Struct, tag="search"):
    """A web search. `sources`: if requested, once it has ended."""

    query: str
    queries: list[str]
    sources: list[SearchSource] | UnsetType = UNSET


class OpenPageAction(Struct, tag="open_page"):
    """The reading of a page."""

    url: str


class OutputWebSearchCall(OutputItem, kw_only=True):
    """A search or a fetch that this server runs."""

    type: Literal["web_search_call"] = "web_search_call"
    status: ItemStatus
    action: SearchAction | OpenPageAction


class OutputCompaction(OutputItem, kw_only=True):
    """A sealed summary of the conversation, which replaces everything before it."""

    type: Literal["compaction"] = "compaction"
    encrypted_content: str


OUTPUT_ITEMS: tuple[type[OutputItem], ...] = (
    OutputMessage,
    OutputReasoning,
    OutputFunctionCall,
    OutputCustomCall,
    OutputLocalShellCall,
    OutputShellCall,
    OutputPatchCall,
    OutputToolSearchCall,
    OutputWebSearchCall,
    OutputCompaction,
)
_REFERENCES = [{"$ref": f"#/components/schemas/Responses{kind.__name__}"} for kind in OUTPUT_ITEMS]
Item: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"anyOf": _REFERENCES})]
"""The JSON of one of the `OUTPUT_ITEMS`. An item is encoded once, for its events, the Response and
the store."""


# Answers.

Status: TypeAlias = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
]


class Usage(Struct):
    """Token counts; `input_tokens` includes those that were read from the cache, `output_tokens`
    reasoning."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class Answer(Struct, kw_only=True):
    """A response in any state: all members that the SDKs' strict types and the Open Responses
    schema require."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    completed_at: int | None
    error: dict[str, str] | None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[Item]
    instructions: Annotated[Any, Meta(extra_json_schema={"type": ["string", "null"]})] = None
    previous_response_id: str | None = None
    tools: _Objects
    tool_choice: Annotated[Any, Meta(extra_json_schema={"type": ["string", "object"]})]
    parallel_tool_calls: bool
    reasoning: dict[str, str | None]
    text: Annotated[Any, Meta(extra_json_schema={"type": "object"})]
    truncation: Literal["auto", "disabled"]
    temperature: float
    top_p: float
    top_logprobs: int
    presence_penalty: float
    frequency_penalty: float
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: Literal["default"]
    metadata: dict[str, str]
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    safety_identifier: str | None
    user: str | None
    prompt_cache_options: Any | UnsetType = UNSET
    prompt_cache_diagnostics: dict[str, Any] | UnsetType = UNSET
    usage: Usage | None
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    token_logprobs: list[float | None] | UnsetType = UNSET


# Events of a stream. The writer of the stream sets their numbers.


class StreamEvent(Struct, kw_only=True):
    """The members of every event that has a number."""

    sequence_number: int = 0


class ResponseEvent(StreamEvent, kw_only=True):
    """The Response at this moment."""

    response: Answer


class ResponseCreated(ResponseEvent, tag="response.created"):
    """The first event."""


class ResponseInProgress(ResponseEvent, tag="response.in_progress"):
    """The turn begins."""


class ResponseCompleted(ResponseEvent, tag="response.completed"):
    """The last event of a turn that ended by itself."""


class ResponseIncomplete(ResponseEvent, tag="response.incomplete"):
    """The last event of a turn that a limit ended."""


class ResponseFailed(ResponseEvent, tag="response.failed"):
    """The last event of a turn that ended with an error."""


LastEvent: TypeAlias = ResponseCompleted | ResponseIncomplete | ResponseFailed
"""The event with which a stream ends."""


class OutputItemEvent(StreamEvent, kw_only=True):
    """An item at its place in the Response."""

    output_index: int
    item: Item


class OutputItemAdded(OutputItemEvent, tag="response.output_item.added"):
    """An item begins."""


class OutputItemDone(OutputItemEvent, tag="response.output_item.done"):
    """An item ends. Clients run calls at this event."""


class ContentEvent(StreamEvent, kw_only=True):
    """A change of an item."""

    item_id: str
    output_index: int


class ContentPartEvent(ContentEvent, kw_only=True):
    """The part of a message or of reasoning."""

    content_index: int = 0
    part: OutputTextPart | ReasoningText


class ContentPartAdded(ContentPartEvent, tag="response.content_part.added"):
    """A part begins."""


class ContentPartDone(ContentPartEvent, tag="response.content_part.done"):
    """A part ends."""


class OutputTextDelta(Struct, kw_only=True, tag="response.output_text.delta"):
    """The next text of a message."""

    item_id: str
    output_index: int
    content_index: int = 0
    sequence_number: int = 0
    delta: str
    logprobs: list[dict[str, Any]]


class OutputTextAnnotationAdded(
    ContentEvent, kw_only=True, tag="response.output_text.annotation.added"
):
    """A citation in the text of a message."""

    content_index: int = 0
    annotation_index: int
    annotation: UrlCitation


class OutputTextDone(ContentEvent, kw_only=True, tag="response.output_text.done"):
    """The whole text of a message."""

    content_index: int = 0
    text: str
    logprobs: list[dict[str, Any]]


class ReasoningTextDelta(Struct, kw_only=True, tag="response.reasoning_text.delta"):
    """The next text of reasoning."""

    item_id: str
    output_index: int
    content_index: int = 0
    sequence_number: int = 0
    delta: str


class ReasoningTextDone(ContentEvent, kw_only=True, tag="response.reasoning_text.done"):
    """The whole text of reasoning."""

    content_index: int = 0
    text: str


class SummaryPartEvent(ContentEvent, kw_only=True):
    """The summary of reasoning."""

    summary_index: int = 0
    part: SummaryText


class SummaryPartAdded(SummaryPartEvent, tag="response.reasoning_summary_part.added"):
    """A summary begins."""


class SummaryPartDone(SummaryPartEvent, tag="response.reasoning_summary_part.done"):
    """A summary ends."""


class SummaryTextDelta(Struct, kw_only=True, tag="response.reasoning_summary_text.delta"):
    """The next text of a summary."""

    item_id: str
    output_index: int
    summary_index: int = 0
    sequence_number: int = 0
    delta: str


class SummaryTextDone(ContentEvent, kw_only=True, tag="response.reasoning_summary_text.done"):
    """The whole text of a summary."""

    summary_index: int = 0
    text: str


class FunctionArgumentsDelta(Struct, kw_only=True, tag="response.function_call_arguments.delta"):
    """The next text of a function's arguments."""

    item_id: str
    output_index: int
    sequence_number: int = 0
    delta: str


class FunctionArgumentsDone(
    ContentEvent, kw_only=True, tag="response.function_call_arguments.done"
):
    """The whole arguments of a function."""

    arguments: str
    name: str


class CustomInputDelta(Struct, kw_only=True, tag="response.custom_tool_call_input.delta"):
    """The next text of a freeform tool's input."""

    item_id: str
    output_index: int
    sequence_number: int = 0
    delta: str


class CustomInputDone(ContentEvent, kw_only=True, tag="response.custom_tool_call_input.done"):
    """The whole input of a freeform tool."""

    input: str


class WebSearchInProgress(ContentEvent, tag="response.web_search_call.in_progress"):
    """A search or a fetch begins."""


class WebSearchSearching(ContentEvent, tag="response.web_search_call.searching"):
    """A search or a fetch runs."""


class WebSearchCompleted(ContentEvent, tag="response.web_search_call.completed"):
    """A search or a fetch has ended."""


Delta: TypeAlias = (
    OutputTextDelta
    | ReasoningTextDelta
    | SummaryTextDelta
    | FunctionArgumentsDelta
    | CustomInputDelta
)


class ItemDispatch(Struct):
    """A finished item once more, on request. The event has no number."""

    output_index: int
    item: Item


class ToolCallDispatch(ItemDispatch, tag="tool_call_dispatch"):
    """A complete call once more."""


class ReasoningDispatch(ItemDispatch, tag="reasoning_dispatch"):
    """Finished reasoning once more."""


Event: TypeAlias = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextAnnotationAdded
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | SummaryPartAdded
    | SummaryPartDone
    | SummaryTextDelta
    | SummaryTextDone
    | FunctionArgumentsDelta
    | FunctionArgumentsDone
    | CustomInputDelta
    | CustomInputDone
    | WebSearchInProgress
    | WebSearchSearching
    | WebSearchCompleted
    | ToolCallDispatch
    | ReasoningDispatch
)
Events: TypeAlias = list[Event]


# Other documents.


class Compaction(Struct, kw_only=True):
    """A conversation as its user messages and one sealed summary."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[_Object]
    usage: Usage


class Deleted(Struct):
    """A response that is no longer stored."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class Items(Struct, kw_only=True):
    """A page of a response's input."""

    object: Literal["list"] = "list"
    data: list[_Object]
    first_id: str
    last_id: str
    has_more: bool


class Tokens(Struct, kw_only=True):
    """The exact size of a prompt."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
