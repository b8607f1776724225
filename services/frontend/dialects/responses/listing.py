"""The input of a response as it is stored and listed: every item with an id, a type and a status."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from services.frontend.dialects.responses.request import MESSAGE, ResponsesRequest, is_reference

_decode = msgspec.json.Decoder(dict[str, Raw]).decode
_parts = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_encode = msgspec.json.Encoder().encode
_PREFIXES = {
    MESSAGE: "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "compaction": "cmp",
    "additional_tools": "at",
}
_WITH_STATUS = frozenset(
    {
        MESSAGE,
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "tool_search_call",
        "tool_search_output",
        "shell_call",
        "shell_call_output",
        "computer_call_output",
    }
)
_DEFAULTS: dict[str, dict[str, Any]] = {
    "reasoning": {"summary": []},
    "additional_tools": {"role": "developer"},
    "tool_search_call": {"execution": "client"},
    "tool_search_output": {"execution": "client"},
}
_PART_DEFAULTS: dict[bytes, tuple[str, Any]] = {
    b'"input_image"': ("detail", "auto"),
    b'"output_text"': ("annotations", []),
}


def stored_items(request: ResponsesRequest, turn: str, resolve: Callable[[str], Raw | None] | None = None) -> list[Raw]:
    """The request's own input, item by item, for GET …/input_items and for the turns that follow.

    Nothing that the client sent is lost; what is added makes the SDK's strict types take it: an id made of the turn's
    where there is none, the type of a message, its text as a part, a status. References become what they name.
    """
    stored: list[Raw] = []
    for index, (item, kind) in enumerate(zip(request.items, request.kinds, strict=True)):
        if is_reference(kind):
            named = resolve(kind.id) if resolve is not None and kind.id is not None else None
            stored.append(named if named is not None else item)
            continue
        members: dict[str, Any] = dict(_decode(item))
        name = kind.type or MESSAGE
        members["type"] = name
        if not kind.id:
            members["id"] = f"{_PREFIXES.get(name, 'item')}_{turn}i{index:03d}"
        if name in _WITH_STATUS and bytes(members.get("status", b"null")) == b"null":
            members["status"] = "completed"
        members = {**_DEFAULTS.get(name, {}), **members}
        if name == MESSAGE and bytes(members.get("content", b"")).startswith(b'"'):
            text = "output_text" if kind.role == "assistant" else "input_text"
            said: dict[str, Any] = {"type": text, "text": members["content"]}
            members["content"] = [{**said, "annotations": []} if text == "output_text" else said]
        else:
            place = "content" if name == MESSAGE else "output"
            if place in members and any(part in bytes(members[place]) for part in _PART_DEFAULTS):
                members[place] = _completed(members[place])
        stored.append(Raw(_encode(members)))
    return stored


def _completed(parts: Raw) -> Any:
    """Content parts with the members that the SDK's types require; anything else as it is."""
    try:
        read: list[dict[str, Any]] = [*_parts(parts)]
    except msgspec.ValidationError:
        return parts
    for part in read:
        name, default = _PART_DEFAULTS.get(bytes(part.get("type", b"")), ("", None))
        if name and bytes(part.get(name, b"null")) == b"null":
            part[name] = default
    return read
