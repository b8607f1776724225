"""The JSON of what the Responses API returns: output items, Responses and other documents, as typed
Structs.

`type` of an output item follows `id`, as in the native API, so it is a member and not a tag.
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from services.frontend.apis.responses import wire
from services.frontend.apis.shared.field_types import JsonObject

TokenLogprobs: TypeAlias = list[dict[str, Any]]
"""The log probability of each token, with the likeliest tokens at its place."""
ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


class UrlCitation(Struct, tag="url_citation"):
    """A page that the text cites, and the characters that cite it; `end_index` is exclusive."""

    start_index: int
    end_index: int
    url: str
    title: str


class ResponsesOutputTextPart(Struct, tag="output_text"):
    """The text of a message. `logprobs`: for each token, if requested."""

    text: str
    annotations: list[UrlCitation]
    logprobs: TokenLogprobs


class OutputItem(Struct, kw_only=True):
    """The members of every item that the model or this server made."""

    id: str
    type: str


class OutputMessage(OutputItem, kw_only=True):
    """Text for the user: one part, none before its first character."""

    type: Literal["message"] = "message"
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[ResponsesOutputTextPart]


class OutputReasoning(OutputItem, kw_only=True):
    """Reasoning. `encrypted_content`: its sealed copy, if requested, or results of tools that this
    server ran."""

    type: Literal["reasoning"] = "reasoning"
    summary: list[wire.SummaryText]
    content: list[wire.ReasoningText] | UnsetType = UNSET
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


class OutputToolSearchCall(OutputItem, kw_only=True):
    """A search of deferred tools, by the client or by this server. One by this server has no
    `call_id`."""

    type: Literal["tool_search_call"] = "tool_search_call"
    status: ItemStatus
    call_id: str | None
    arguments: JsonObject
    execution: Literal["client", "server"]


class OutputToolSearchOutput(OutputItem, kw_only=True):
    """The tools that a search by this server found, as the client defined them."""

    type: Literal["tool_search_output"] = "tool_search_output"
    status: ItemStatus
    call_id: None = None
    execution: Literal["server"] = "server"
    tools: list[JsonObject]


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
    OutputToolSearchOutput,
    OutputWebSearchCall,
    OutputCompaction,
)
_REFERENCES = [{"$ref": f"#/components/schemas/Responses{kind.__name__}"} for kind in OUTPUT_ITEMS]
Item: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"anyOf": _REFERENCES})]
"""The JSON of one of the `OUTPUT_ITEMS`. An item is encoded once, for its events, the Response and
the store."""

Status: TypeAlias = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
]


class ResponsesUsage(Struct):
    """Token counts; `input_tokens` includes those that were read from the cache, `output_tokens`
    reasoning."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponsesAnswer(Struct, kw_only=True):
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
    tools: wire.JsonObjects
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
    usage: ResponsesUsage | None
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    token_logprobs: list[float | None] | UnsetType = UNSET


class Compaction(Struct, kw_only=True):
    """A conversation as its user messages and one sealed summary."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[JsonObject]
    usage: ResponsesUsage


class Deleted(Struct):
    """A response that is no longer stored."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class Items(Struct, kw_only=True):
    """A page of a response's input."""

    object: Literal["list"] = "list"
    data: list[JsonObject]
    first_id: str
    last_id: str
    has_more: bool


class ResponsesTokens(Struct, kw_only=True):
    """The exact size of a prompt."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
