"""A Chat Completions request as it stands on the wire (apis.md C.1), as typed Structs.

Only what decides a prompt or an answer is named; every other field is skipped (`store`, `metadata`, `prediction`,
`moderation`, `safety_identifier`, …). Reasoning that clients of other servers send along is read leniently: it is no
part of the API, so no form of it makes a request wrong.
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Raw, Struct

from services.frontend.dialects.sampling_fields import Limit, SamplingFields

NULL = Raw(b"null")


class TextPart(Struct, tag="text"):
    """Text."""

    text: str


class InputTextPart(Struct, tag="input_text"):
    """Text in the spelling of Responses, which clients of both APIs mix up."""

    text: str


class OutputTextPart(Struct, tag="output_text"):
    """Text in the spelling of Responses, which clients of both APIs mix up."""

    text: str


class RefusalPart(Struct, tag="refusal"):
    """Text with which the assistant declined."""

    refusal: str


class Url(Struct):
    """Where something lies, or a data URL that is it."""

    url: str


class ImagePart(Struct, tag="image_url"):
    """An image."""

    image_url: str | Url


class VideoPart(Struct, tag="video_url"):
    """vLLM's: a video."""

    video_url: str | Url


class AudioUrlPart(Struct, tag="audio_url"):
    """vLLM's: a sound."""

    audio_url: str | Url


class InputAudio(Struct):
    """A sound, base64."""

    data: str
    format: str = ""


class AudioPart(Struct, tag="input_audio"):
    """A sound."""

    input_audio: InputAudio


class File(Struct):
    """A document: inline, or in the Files API, which this server does not have."""

    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class FilePart(Struct, tag="file"):
    """A document."""

    file: File


class ThinkingPart(Struct, tag="thinking"):
    """Mistral's: reasoning among the parts of an assistant's content."""

    thinking: Any = None


Part: TypeAlias = (
    TextPart
    | InputTextPart
    | OutputTextPart
    | RefusalPart
    | ImagePart
    | VideoPart
    | AudioUrlPart
    | AudioPart
    | FilePart
    | ThinkingPart
)
Content: TypeAlias = str | list[Part | str]


class FunctionCall(Struct):
    """A call of a function. Natively `arguments` is JSON text; some clients send the object itself."""

    name: str
    arguments: Raw = NULL


class CustomCall(Struct):
    """A call of a freeform tool."""

    name: str
    input: str = ""


class ToolCall(Struct):
    """A call that the assistant made."""

    id: str
    type: Literal["function", "custom"] | None = None
    function: FunctionCall | None = None
    custom: CustomCall | None = None


class Message(Struct):
    """One message of any role. `prefix` is DeepSeek's, `partial` Kimi's: the answer begins with this message."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_text: Any = None
    reasoning_details: Any = None
    thinking_blocks: Any = None
    prefix: bool | None = None
    partial: bool | None = None


class Function(Struct):
    """A function as the model is told of it."""

    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class GrammarSpec(Struct):
    """`definition` in the language `syntax`."""

    syntax: Literal["lark", "regex"]
    definition: str


class CustomFormat(Struct):
    """What the input of a freeform tool looks like; the grammar stands one level deeper than in Responses."""

    type: Literal["text", "grammar"]
    grammar: GrammarSpec | None = None


class Custom(Struct):
    """A freeform tool as the model is told of it."""

    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    format: CustomFormat | None = None


class Tool(Struct):
    """A tool; `type` tells which member it has."""

    type: Literal["function", "custom"] = "function"
    function: Function | None = None
    custom: Custom | None = None


class Named(Struct):
    """The name of a tool."""

    name: str


class ChosenTool(Struct):
    """One tool, named."""

    type: Literal["function", "custom"] = "function"
    function: Named | None = None
    custom: Named | None = None


class AllowedTools(Struct):
    """The tools that may be called."""

    mode: Literal["auto", "required"]
    tools: list[ChosenTool]


class ToolChoice(Struct):
    """Which tool to call. Only `function` and `custom` name one."""

    type: Literal["function", "custom", "allowed_tools"]
    function: Named | None = None
    custom: Named | None = None
    allowed_tools: AllowedTools | None = None


class JsonSchema(Struct):
    """A schema that the answer's text must fit."""

    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(Struct):
    """The form of the answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Thinking(Struct):
    """DeepSeek's, GLM's and Kimi's switch."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Limit | None = None


class ReasoningOptions(Struct):
    """OpenRouter's controls."""

    effort: str | None = None
    max_tokens: Limit | None = None
    enabled: bool | None = None
    exclude: bool | None = None


class Body(SamplingFields, kw_only=True):
    """The request."""

    messages: list[Message]
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Function] | None = None
    function_call: str | Named | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    thinking: bool | Thinking | None = None
    thinking_budget: Limit | None = None
    thinking_token_budget: Limit | None = None
    enable_thinking: bool | None = None
    reasoning: ReasoningOptions | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    modalities: list[str] | None = None
    web_search_options: Raw = NULL
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    continue_final_message: bool | None = None
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template_args: dict[str, Any] | None = None
