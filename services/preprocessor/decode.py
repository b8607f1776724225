"""Decodes turn and count requests. Tools and long instructions, which agents repeat, are found by their JSON."""

from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import asdict

from schemas.conversation import Conversation, ToolSpec
from schemas.frames import CountRequest, TurnRequest
from services.runtime.memo import KnownParts, share_texts
from services.templates.tools import SessionTools

_OBJECT_FACTOR = 8
"""Decoded objects take several times the bytes of their JSON."""


class _Conversation(Conversation, frozen=True):
    tools: Raw = Raw(b"[]")  # type: ignore[assignment]


class _TurnRequest(TurnRequest, frozen=True):
    conversation: _Conversation


class _CountRequest(CountRequest, frozen=True):
    conversation: _Conversation


_decode_turn: Final = msgspec.json.Decoder(_TurnRequest).decode
_decode_count: Final = msgspec.json.Decoder(_CountRequest).decode
_decode_tools: Final = msgspec.json.Decoder(list[ToolSpec]).decode


class RequestDecoder:
    """Decodes requests. Equal tools are one object, which has their forms for the template and the parser."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` bounds the tools and texts that are kept, roughly."""
        self._parts: KnownParts[Any] = KnownParts(max_bytes // _OBJECT_FACTOR)

    def turn(self, data: bytes) -> TurnRequest:
        """The request. Raises msgspec.ValidationError and msgspec.DecodeError as an ordinary decoder does."""
        request = _decode_turn(data)
        return TurnRequest(**{**asdict(request), "conversation": self._with_tools(request.conversation)})

    def count(self, data: bytes) -> CountRequest:
        """The request. Raises as `turn`."""
        return CountRequest(self._with_tools(_decode_count(data).conversation))

    def _with_tools(self, raw: _Conversation) -> Conversation:
        tools = self._parts.get(bytes(raw.tools), _read_tools)
        conversation = Conversation(**{**asdict(raw), "tools": tools})
        share_texts(conversation, self._parts)
        return conversation


def _read_tools(data: bytes) -> SessionTools:
    return SessionTools(_decode_tools(data))
