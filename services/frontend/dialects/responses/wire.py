"""A Responses request as it stands on the wire, as typed Structs.

Input items and everything that the answer echoes stay raw (`Raw`): they are stored, listed and sent back as the client
spelled them, and read a second time where they decide a prompt. Fields that decide neither are not named and are
skipped (`moderation`, `access_programs`, `image`, `stream_options`, `client_metadata`, … and whatever is to come).
"""

from typing import Any, Literal, TypeAlias

from msgspec import Raw, Struct

NULL = Raw(b"null")


class Body(Struct):
    """The request (apis.md B.2), and the extras that vLLM, SGLang and Dynamo take in the same body."""

    model: str | None = None
    input: str | list[Raw] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Raw = NULL
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    include: list[str] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    parallel_tool_calls: bool | None = None
    tools: list[Raw] | None = None
    tool_choice: Raw = NULL
    text: Raw = NULL
    reasoning: Raw = NULL
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    prompt: Raw = NULL
    prompt_cache_key: str | None = None
    prompt_cache_options: Raw = NULL
    prompt_cache_retention: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    user: str | None = None
    service_tier: str | None = None
    context_management: Raw = NULL
    generate: bool | None = None
    stream_id: str | None = None
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: Any = None
    cache_salt: Any = None
    nvext: Any = None


Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SummaryStyle: TypeAlias = Literal["auto", "concise", "detailed", "none"]


class Reasoning(Struct):
    """How to think, and what to show of it. `generate_summary` is the deprecated name of `summary`."""

    effort: Effort | None = None
    summary: SummaryStyle | None = None
    generate_summary: SummaryStyle | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None


class Format(Struct):
    """Structured output, flat as Responses has it."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(Struct):
    """How the text is to be."""

    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class CacheOptions(Struct):
    """Only `prewarm` asks for something that this server does not do by itself."""

    prewarm: bool | None = None


class ManagedContext(Struct):
    """An element of `context_management`."""

    type: str
    compact_threshold: int | None = None


class ToolFormat(Struct):
    """What a freeform tool's input looks like."""

    type: str = "text"
    syntax: str | None = None
    definition: str | None = None


class ToolType(Struct):
    """What kind of tool it is."""

    type: str


class ToolEnvironment(Struct):
    """Where a shell runs: `local`, or a container of OpenAI's."""

    type: str = "local"


class Tool(Struct):
    """A tool of any kind that can be served; `type` tells which (apis.md B.4)."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    format: ToolFormat | None = None
    tools: list[Raw] | None = None
    execution: Literal["server", "client"] | None = None
    environment: ToolEnvironment | None = None


class ToolChoice(Struct):
    """A choice that is an object."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[Raw] | None = None


class NamedTool(Struct):
    """A tool as `allowed_tools` refers to it."""

    type: str = "function"
    name: str | None = None
    namespace: str | None = None


# Parts of messages and of tool results.


class InputText(Struct, tag="input_text"):
    """What somebody says to the model."""

    text: str


class PlainText(Struct, tag="text"):
    """Chat's name for it."""

    text: str


class OutputText(Struct, tag="output_text"):
    """What the model said."""

    text: str


class Refusal(Struct, tag="refusal"):
    """The model said no."""

    refusal: str


class InputImage(Struct, tag="input_image"):
    """An image: a URL or data URL."""

    image_url: str | None = None
    file_id: str | None = None


class InputFile(Struct, tag="input_file"):
    """A file: data, or where it lies."""

    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None


class InputAudio(Struct, tag="input_audio"):
    """A sound; only that there is one goes any further."""


class ComputerScreenshot(Struct, tag="computer_screenshot"):
    """What a computer's screen showed."""

    image_url: str | None = None
    file_id: str | None = None


class ReasoningText(Struct, tag="reasoning_text"):
    """A piece of a thought."""

    text: str


class SummaryText(Struct, tag="summary_text"):
    """A piece of a thought's summary."""

    text: str


Part: TypeAlias = (
    InputText | PlainText | OutputText | Refusal | InputImage | InputFile | InputAudio | ComputerScreenshot
)


# Items. What is not named here keeps no place in a prompt.


class Kind(Struct):
    """What tells items apart: `type`, or none for a message or a reference."""

    type: str | None = None
    role: str | None = None
    id: str | None = None


class Message(Struct):
    """A message in any of its three forms."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]


class ReasoningItem(Struct):
    """A thought. Agents send it without id, and with null for what there is not."""

    summary: list[SummaryText] | None = None
    content: list[ReasoningText | PlainText] | None = None
    encrypted_content: str | None = None
    id: str | None = None


class FunctionCall(Struct):
    """A call with JSON text for arguments."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    id: str | None = None


class CustomCall(Struct):
    """A call of a freeform tool."""

    call_id: str
    name: str
    input: str
    namespace: str | None = None
    id: str | None = None


class CallOutput(Struct):
    """What a function or a freeform tool answered."""

    output: str | list[Part]
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None


class LocalShellCall(Struct):
    """A call of the `local_shell` tool."""

    call_id: str
    action: Raw
    id: str | None = None


class LocalShellOutput(Struct):
    """Its answer. Natively `id` is the call's; Codex of old sent `call_id`."""

    output: str
    id: str | None = None
    call_id: str | None = None


class ShellCall(Struct):
    """A call of the `shell` tool."""

    call_id: str
    action: Raw
    id: str | None = None


class ShellChunk(Struct):
    """What one of its commands wrote, and how it ended."""

    stdout: str = ""
    stderr: str = ""
    outcome: dict[str, Any] | None = None


class ShellOutput(Struct):
    """Its answer."""

    call_id: str
    output: list[ShellChunk]


class PatchCall(Struct):
    """A call of the `apply_patch` tool."""

    call_id: str
    operation: Raw
    id: str | None = None


class PatchOutput(Struct):
    """Its answer."""

    call_id: str
    status: str | None = None
    output: str | None = None


class ComputerOutput(Struct):
    """What a computer's screen showed after a call of OpenAI's `computer` tool."""

    output: ComputerScreenshot


class SearchCall(Struct):
    """A search for tools."""

    arguments: Raw
    call_id: str | None = None
    id: str | None = None
    execution: str | None = None


class SearchOutput(Struct):
    """The tools that were found: the model knows them from here on."""

    tools: list[Raw]
    call_id: str | None = None
    execution: str | None = None


class AdditionalTools(Struct):
    """Tools that enter with the input."""

    tools: list[Raw]


class ConfigurationUpdate(Struct):
    """A change of the settings in mid-conversation; the last one holds."""

    reasoning: Raw = NULL
    text: Raw = NULL


class CompactionItem(Struct):
    """Stands for everything before it."""

    encrypted_content: str


class ItemReference(Struct):
    """Names a stored item."""

    id: str
