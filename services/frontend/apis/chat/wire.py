"""The JSON of Chat Completions as typed Structs: requests, answers, and the choices of chunks.

Fields of requests that decide neither prompt nor answer are left out and skipped (`prediction`,
`safety_identifier`, …). Reasoning is not part of the API and has the type Any, so that none of its
forms makes a request invalid.
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from services.frontend.apis.shared.field_types import NULL, Limit, Name
from services.frontend.apis.shared.openai.chunks import Logprobs, UsageAnswer
from services.frontend.apis.shared.sampling_fields import OpenAIFields


class TextPart(Struct, tag="text"):
    text: str


class InputTextPart(TextPart, tag="input_text"):
    """Text as in Responses; some clients mix the two APIs."""


class ChatOutputTextPart(TextPart, tag="output_text"):
    """Text as in Responses; some clients mix the two APIs."""


class RefusalPart(Struct, tag="refusal"):
    """A refusal of the assistant."""

    refusal: str


class Url(Struct):
    """A URL, or a data URL."""

    url: str


class ImagePart(Struct, tag="image_url"):
    image_url: str | Url


class VideoPart(Struct, tag="video_url"):
    video_url: str | Url


class AudioUrlPart(Struct, tag="audio_url"):
    """Audio by URL (vLLM)."""

    audio_url: str | Url


class ChatInputAudio(Struct):
    """Audio in base64."""

    data: str
    format: str = ""


class AudioPart(Struct, tag="input_audio"):
    input_audio: ChatInputAudio


class File(Struct):
    """A document: inline, or in the Files API, which this server lacks."""

    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class FilePart(Struct, tag="file"):
    file: File


class ThinkingPart(Struct, tag="thinking"):
    """Reasoning as a part of an assistant's content (Mistral)."""

    thinking: Any = None


Part: TypeAlias = (
    TextPart
    | InputTextPart
    | ChatOutputTextPart
    | RefusalPart
    | ImagePart
    | VideoPart
    | AudioUrlPart
    | AudioPart
    | FilePart
    | ThinkingPart
)
Content: TypeAlias = str | list[Part | str]


class ChatFunctionCall(Struct):
    """A call of a function. Natively `arguments` is JSON text; some clients send an object."""

    name: str
    arguments: Raw = NULL


class ChatCustomCall(Struct):
    """A call of a freeform tool."""

    name: str
    input: str = ""


class ToolCall(Struct):
    """A call of the assistant."""

    id: str
    type: Literal["function", "custom"] | None = None
    function: ChatFunctionCall | None = None
    custom: ChatCustomCall | None = None


class ChatMessage(Struct):
    """One message of any role. The answer continues a message with `prefix` (DeepSeek) or `partial`
    (Kimi)."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: ChatFunctionCall | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_text: Any = None
    reasoning_details: Any = None
    thinking_blocks: Any = None
    audio: Any = None
    prefix: bool | None = None
    partial: bool | None = None


class Function(Struct):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class GrammarSpec(Struct):
    """`definition` in the language `syntax`."""

    syntax: Literal["lark", "regex"]
    definition: str


class CustomFormat(Struct):
    """Format of a freeform tool's input; the grammar is one level deeper than in Responses."""

    type: Literal["text", "grammar"]
    grammar: GrammarSpec | None = None


class Custom(Struct):
    """A freeform tool."""

    name: Name
    description: str | None = None
    format: CustomFormat | None = None


class ChatTool(Struct):
    """A tool; its `type` is the name of the member that it has."""

    type: Literal["function", "custom"]
    function: Function | None = None
    custom: Custom | None = None


class Named(Struct):
    """The name of a tool."""

    name: str


class ChosenTool(Struct):
    """One tool, named."""

    type: Literal["function", "custom"]
    function: Named | None = None
    custom: Named | None = None


class AllowedTools(Struct):
    """The tools that may be called."""

    mode: Literal["auto", "required"]
    tools: list[ChosenTool]


class ChatToolChoice(Struct):
    """Which tool to call. Only `function` and `custom` name one."""

    type: Literal["function", "custom", "allowed_tools"]
    function: Named | None = None
    custom: Named | None = None
    allowed_tools: AllowedTools | None = None


class JsonSchema(Struct):
    """The schema of the answer's text."""

    name: Name | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(Struct):
    """The format of the answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatThinking(Struct):
    """The switch of DeepSeek, GLM and Kimi."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Limit | None = None


class ReasoningOptions(Struct):
    """The options of OpenRouter."""

    effort: str | None = None
    max_tokens: Limit | None = None
    enabled: bool | None = None
    exclude: bool | None = None


class ChatBody(OpenAIFields, kw_only=True):
    """The request."""

    store: bool | None = None
    messages: Annotated[list[ChatMessage], Meta(extra_json_schema={"minItems": 1})]
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[ChatTool] | None = None
    tool_choice: str | ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Function] | None = None
    function_call: str | Named | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    thinking: bool | ChatThinking | None = None
    thinking_budget: Limit | None = None
    thinking_token_budget: Limit | None = None
    enable_thinking: bool | None = None
    reasoning: ReasoningOptions | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    moderation: Raw = NULL
    web_search_options: Raw = NULL
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template_args: dict[str, Any] | None = None


# Answers, and the choices of chunks.


class CalledFunction(Struct):
    """The function of a call. In a chunk: a piece of the arguments; the first piece has the
    name."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class CalledTool(Struct):
    """The freeform tool of a call. In a chunk: a piece of the input; the first piece has the
    name."""

    name: str | UnsetType = UNSET
    input: str = ""


class AnswerCall(Struct, kw_only=True):
    """A call. In a chunk: a piece with the call's index; the first piece has id and type."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: CalledFunction | UnsetType = UNSET
    custom: CalledTool | UnsetType = UNSET


class ReasoningDetail(Struct):
    """The seal of a thought in OpenRouter's form. `id`: the id of the call that follows the
    thought."""

    type: str
    data: str
    id: str
    format: str
    index: int


class ChatMessageDelta(Struct, kw_only=True):
    """A piece of the assistant's message. Reasoning is in the field that the server is configured
    for."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[AnswerCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET
    reasoning_details: list[ReasoningDetail] | UnsetType = UNSET


class AnswerMessage(ChatMessageDelta, kw_only=True):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None


ChatFinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "function_call"]


class ChatChunkChoice(Struct):
    """A piece of one of the answers."""

    index: int
    delta: ChatMessageDelta
    logprobs: Logprobs | None = None
    finish_reason: ChatFinishReason | None = None
    token_ids: list[int] | UnsetType = UNSET
    stop_reason: str | UnsetType | None = UNSET


class AnswerChoice(Struct):
    """One of the answers."""

    index: int
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: ChatFinishReason
    token_ids: list[int] | UnsetType = UNSET
    stop_reason: str | UnsetType | None = UNSET


class ChatAnswer(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str | None
    service_tier: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    choices: list[AnswerChoice]
    usage: UsageAnswer
