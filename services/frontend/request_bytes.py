"""Requests to preprocessors as bytes, of what is known of them already: a conversation's tools may carry their JSON."""

from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from schemas.conversation import Conversation
from schemas.frames import CountRequest, TurnRequest
from services.frontend.dialects.known_parts import Spelled

_encode = msgspec.json.Encoder().encode
_NAMES = Conversation.__struct_fields__
_TOOLS = _NAMES.index("tools")


def _with_spelled_tools() -> Any:
    """`Conversation` with tools that are encoded already; its members, their order and defaults are the same."""
    fields = [
        (field.encode_name, Raw if field.name == "tools" else field.type, _default(field))
        for field in msgspec.structs.fields(Conversation)
    ]
    return msgspec.defstruct("ConversationWithSpelledTools", fields, frozen=True, omit_defaults=True)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.name == "tools":
        return Raw(b"[]")
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return msgspec.field(default=field.default)


_Spelled = _with_spelled_tools()


def request_bytes(request: TurnRequest | CountRequest) -> bytes:
    """The request as JSON, the same bytes as msgspec makes of it."""
    conversation = request.conversation
    tools = conversation.tools
    if type(tools) is not Spelled:
        return _encode(request)
    members = list(msgspec.structs.astuple(conversation))
    members[_TOOLS] = Raw(tools.json)
    return _encode(replace(request, conversation=_Spelled(*members)))
