"""What the APIs answer, as types: for the document, and for the test that holds answers and document together.

The documents themselves are written by the dialects, piece by piece; these say what is always in them. A field with a
default may be left out.
"""

from typing import Any, Literal, TypeAlias

from msgspec import Struct

# Errors


class AnthropicErrorDetail(Struct):
    """What went wrong."""

    type: str
    message: str
    details: dict[str, Any] | None = None


class AnthropicError(Struct):
    """An error in the shape of the Messages API."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


class OpenAIErrorDetail(Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(Struct):
    """An error in the shape of both OpenAI APIs."""

    error: OpenAIErrorDetail


class SharedErrorDetail(Struct):
    """What went wrong, with the members of both families of APIs."""

    type: str
    message: str
    param: str | None
    code: str | None


class SharedError(Struct):
    """An error that clients of every API read."""

    type: Literal["error"]
    error: SharedErrorDetail
    request_id: str


# Messages


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


MessageContent: TypeAlias = TextContent | ThinkingContent | ToolUseContent


class MessageUsage(Struct):
    """Token counts; `input_tokens` is without what was read from the cache."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: dict[str, int]
    service_tier: str
    output_tokens_details: dict[str, int]


class MessageAnswer(Struct):
    """A turn of the assistant."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageContent]
    stop_reason: Literal["end_turn", "tool_use", "max_tokens", "stop_sequence", "model_context_window_exceeded"]
    stop_sequence: str | None
    usage: MessageUsage
    context_management: dict[str, Any] | None = None


class MessageTokens(Struct):
    """The exact size of a prompt."""

    input_tokens: int
    context_management: dict[str, int] | None = None


# Chat Completions and Completions


class OpenAIUsage(Struct):
    """Token counts; `prompt_tokens` is with what was read from the cache, `completion_tokens` with reasoning."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class ChatAnswerMessage(Struct):
    """What the assistant said. Reasoning is in the field that the server is set to."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None


class ChatAnswerChoice(Struct):
    """One of the answers."""

    index: int
    message: ChatAnswerMessage
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    logprobs: dict[str, Any] | None


class ChatAnswer(Struct):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatAnswerChoice]
    usage: OpenAIUsage
    system_fingerprint: str
    service_tier: str | None = None


class CompletionChoice(Struct):
    """One of the answers."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: dict[str, Any] | None


class CompletionAnswer(Struct):
    """A text completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: OpenAIUsage
    system_fingerprint: str


# Responses


class ResponseUsage(Struct):
    """Token counts; `input_tokens` is with what was read from the cache, `output_tokens` with reasoning."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseAnswer(Struct):
    """A response in any state; beside these members it has those of its request."""

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
    usage: ResponseUsage | None


class ResponseDeleted(Struct):
    """A response that is not stored any more."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ResponseItems(Struct):
    """A page of what a response was made from."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


class ResponseTokens(Struct):
    """The exact size of a prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ResponseCompaction(Struct):
    """A conversation as its user messages and one sealed summary."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage


# Models, tokens, health


class ModelAnswer(Struct):
    """A model under one of its names, with the fields of both families of APIs."""

    id: str
    type: Literal["model"]
    object: Literal["model"]
    display_name: str
    created: int
    created_at: str
    owned_by: str
    root: str
    lifecycle: Literal["active", "deprecated", "retired"]
    max_input_tokens: int | None
    max_tokens: int | None
    max_model_len: int | None
    capabilities: dict[str, Any]


class ModelPage(Struct):
    """Every model under each of its names; `models` is Codex' catalogue of them."""

    object: Literal["list"]
    data: list[ModelAnswer]
    has_more: bool
    first_id: str | None
    last_id: str | None
    models: list[dict[str, Any]]


class CodexCatalogue(Struct):
    """Codex' catalogue, for `model_catalog_url`."""

    models: list[dict[str, Any]]


class TokenIds(Struct):
    """Ids of a text or of a prompt."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: None


class PlainPrompt(Struct):
    """The text of ids."""

    prompt: str


class Probe(Struct):
    """A probe's answer."""

    status: str


class Health(Struct):
    """What is there, and how busy it is."""

    ready: bool
    models: list[str]


class Version(Struct):
    """Which release this is."""

    version: str


class Hello(Struct):
    """Whom a client has reached."""

    name: str
    version: str
