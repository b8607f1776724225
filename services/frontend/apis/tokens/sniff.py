"""Whether a body with `messages` belongs to Chat Completions or to the Messages API, for paths that take both."""

from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from services.frontend.apis.chat import wire as chat
from services.frontend.apis.messages import wire as messages


def _tags(union: Any) -> set[str]:
    return {str(kind.__struct_config__.tag) for kind in get_args(union)}


_FIELDS = {*chat.Body.__struct_fields__, "add_generation_prompt"} - {*messages.Body.__struct_fields__, "service_tier"}
_MEMBERS = {*chat.Message.__struct_fields__} - {*messages.Message.__struct_fields__}
_ROLES = ("developer", "tool", "function")
_PARTS = _tags(chat.Part) - _tags(messages.Block)
_CHOICES = ("function", "custom", "allowed_tools")


def looks_like_chat(body: bytes) -> bool:
    """True if something in it exists in Chat Completions only. What exists in both means the same in both."""
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    if not isinstance(request, dict):
        return False
    if not _FIELDS.isdisjoint(request) or isinstance(request.get("thinking"), bool):
        return True
    choice = request.get("tool_choice")
    if isinstance(choice, str) or (isinstance(choice, dict) and choice.get("type") in _CHOICES):
        return True
    if any(tool.get("function") or tool.get("custom") for tool in _objects(request.get("tools"))):
        return True
    return any(_is_chat(message) for message in _objects(request.get("messages")))


def _is_chat(message: dict[str, Any]) -> bool:
    if message.get("role") in _ROLES or any(message.get(name) is not None for name in _MEMBERS):
        return True
    return any(part.get("type") in _PARTS for part in _objects(message.get("content")))


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())
