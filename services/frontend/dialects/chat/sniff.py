"""Whether a body with `messages` is one of Chat Completions or of the Messages API, for paths that take both."""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from services.frontend.dialects.chat.wire import NULL

_ROLES = ("developer", "tool", "function")
_PARTS = ("image_url", "input_audio", "file", "video_url", "audio_url", "refusal")


class _Part(Struct):
    type: str = ""


class _Message(Struct):
    role: str = ""
    content: str | list[_Part | str] | None = None
    tool_calls: Raw = NULL
    function_call: Raw = NULL
    reasoning_content: Raw = NULL


class _Tool(Struct):
    type: str = ""
    function: Raw = NULL


class _Body(Struct):
    messages: list[_Message]
    tools: list[_Tool] | None = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None


_decoder = msgspec.json.Decoder(_Body)


def looks_like_chat(body: bytes) -> bool:
    """True where something in it is known to Chat Completions only. What both understand, both understand alike."""
    try:
        asked = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    if asked.add_generation_prompt is not None or asked.continue_final_message is not None:
        return True
    return any(bytes(tool.function) != b"null" for tool in asked.tools or []) or any(map(_is_chat, asked.messages))


def _is_chat(message: _Message) -> bool:
    if message.role in _ROLES:
        return True
    if any(bytes(raw) != b"null" for raw in (message.tool_calls, message.function_call, message.reasoning_content)):
        return True
    parts = message.content if isinstance(message.content, list) else []
    return any(isinstance(part, _Part) and part.type in _PARTS for part in parts)
