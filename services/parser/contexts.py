"""Decodes the parse contexts of turns. Pure."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from schemas.conversation import ToolSpec
from schemas.requests import ABSENT, ParseContext
from services.runtime.caches.memo import Memo

MIN_BYTES: Final = 1024
"""A smaller context is decoded at once: looking up its tools would take longer."""
TOOLS_BYTES: Final = 2 * 1024 * 1024
"""Bytes of the tool lists that are kept, as JSON: those of some 70 agents."""


class _ContextParts(msgspec.Struct):
    frontend: Annotated[str, Meta(min_length=1)]
    tools: msgspec.Raw = ABSENT


_decode = msgspec.json.Decoder(ParseContext).decode
_decode_parts = msgspec.json.Decoder(_ContextParts).decode
_decode_tool_list = msgspec.json.Decoder(list[ToolSpec]).decode


class ContextDecoder:
    """Decodes parse contexts.

    A session has the same tools in all its turns. They are decoded once and shared by all open
    turns: 25 decoded tools take 130 KB, and their decoding half of a context's time.
    """

    def __init__(self) -> None:
        self._tools = Memo[list[ToolSpec]](TOOLS_BYTES)

    def decode(self, raw: msgspec.Raw) -> ParseContext:
        """Decodes a context; its tools must not be changed. Raises msgspec.DecodeError, also
        where it names no frontend."""
        context = self._decode(bytes(raw))
        if not context.frontend:
            raise msgspec.ValidationError("the context names no frontend")
        return context

    def _decode(self, data: bytes) -> ParseContext:
        if len(data) < MIN_BYTES:
            return _decode(data)
        tools = bytes(_decode_parts(data).tools)
        # Only the field has these bytes: quotes inside of strings are escaped, and no other field
        # has this name.
        head, field, tail = data.partition(b'"tools":' + tools)
        if not field:
            return _decode(data)
        context = _decode(head + b'"tools":[]' + tail)
        return replace(context, tools=self._tools.get(tools, _decode_tool_list))


def frontend_of(raw: msgspec.Raw) -> str:
    """Returns the frontend of a context that may be invalid elsewhere. Raises
    msgspec.DecodeError."""
    return _decode_parts(raw).frontend
