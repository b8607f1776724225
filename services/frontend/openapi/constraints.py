"""What the types of the wire leave open and the dialects refuse: said here, so that the document says it.

The types are wider than the APIs, because a refusal in the API's own words needs a value that was read.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_NEVER = {"type": "null", "description": "Not supported by this server."}
_NON_EMPTY = {"minItems": 1}
_TOKEN_ID = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}

CONSTRAINTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "MessagesBody": {
            "messages": _NON_EMPTY,
            "max_tokens": {"anyOf": [{"type": "integer", "minimum": 0}]},
            "stop_sequences": {"anyOf": [{"type": "array", "items": {"type": "string", "minLength": 1}}]},
            "mcp_servers": {"anyOf": [{"type": "array", "maxItems": 0}, {"type": "null"}]},
            "thread": _NEVER,
            "compaction": _NEVER,
        },
        "MessagesMessage": {"content": {"description": "Only a system message with `output_config` may have none."}},
        "MessagesTool": {"name": {"minLength": 1}},
        "MessagesToolUseBlock": {"input": {"type": "object"}},
        "MessagesBase64Source": {"data": {"type": "string", "contentEncoding": "base64"}},
        "ChatBody": {"messages": _NON_EMPTY},
        "Ids": {"tokens": {"items": _TOKEN_ID}},
    }
)
"""By component and property: members of the property's schema that go before those of its type."""


def constrain(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A component with its constraints."""
    narrowed = CONSTRAINTS.get(name)
    if narrowed is None:
        return schema
    properties = {**schema["properties"]}
    for field, members in narrowed.items():
        properties[field] = {**properties[field], **members}
    return {**schema, "properties": properties}
