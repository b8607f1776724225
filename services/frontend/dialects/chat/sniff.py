"""Whether a body with `messages` is one of Chat Completions or of the Messages API, for paths that take both."""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from services.frontend.dialects.chat.wire import NULL

_FIELDS = frozenset(
    {
        "chat_template_args",
        "enable_thinking",
        "function_call",
        "functions",
        "guided_json",
        "include_reasoning",
        "json_schema",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "n",
        "parallel_tool_calls",
        "prompt_cache_key",
        "reasoning",
        "reasoning_effort",
        "response_format",
        "separate_reasoning",
        "stop",
        "stream_options",
        "structured_outputs",
        "thinking_budget",
        "thinking_token_budget",
        "top_logprobs",
        "verbosity",
    }
)
"""Fields of the request that the Messages API does not have."""
_CHOICES = ("function", "custom", "allowed_tools")
_ROLES = ("developer", "tool", "function")
_MEMBERS = (
    "tool_calls",
    "function_call",
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "thinking_blocks",
    "refusal",
    "prefix",
    "partial",
)
"""Fields of a message that the Messages API does not have."""
_PARTS = ("image_url", "input_audio", "file", "video_url", "audio_url", "refusal")


class _Part(Struct):
    type: str = ""


class _Message(Struct):
    role: str = ""
    content: str | list[_Part | str] | None = None
    tool_calls: Raw = NULL
    function_call: Raw = NULL
    reasoning_content: Raw = NULL
    reasoning: Raw = NULL
    reasoning_details: Raw = NULL
    thinking_blocks: Raw = NULL
    refusal: Raw = NULL
    prefix: Raw = NULL
    partial: Raw = NULL


class _Tool(Struct):
    type: str | None = None
    function: Raw = NULL
    custom: Raw = NULL


class _Choice(Struct):
    type: str = ""


class _Body(Struct):
    messages: list[_Message]
    tools: list[_Tool] | None = None
    tool_choice: str | _Choice | None = None
    thinking: bool | _Choice | None = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None


_decoder = msgspec.json.Decoder(_Body)
_members = msgspec.json.Decoder(dict[str, Raw])


def looks_like_chat(body: bytes) -> bool:
    """True where something in it is known to Chat Completions only. What both understand, both understand alike."""
    try:
        if not _FIELDS.isdisjoint(_members.decode(body)):
            return True
        asked = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    if asked.add_generation_prompt is not None or asked.continue_final_message is not None:
        return True
    chosen = asked.tool_choice.type in _CHOICES if isinstance(asked.tool_choice, _Choice) else asked.tool_choice
    if chosen or isinstance(asked.thinking, bool):
        return True
    return any(map(_is_chats, asked.tools or [])) or any(map(_is_chat, asked.messages))


def _is_chats(tool: _Tool) -> bool:
    return _given(tool.function) or _given(tool.custom)


def _given(raw: Raw) -> bool:
    return bytes(raw) != b"null"


def _is_chat(message: _Message) -> bool:
    if message.role in _ROLES:
        return True
    if any(_given(getattr(message, name)) for name in _MEMBERS):
        return True
    parts = message.content if isinstance(message.content, list) else []
    return any(isinstance(part, _Part) and part.type in _PARTS for part in parts)
