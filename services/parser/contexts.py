"""Parse contexts off the bus. The tools of a session are the same in all its turns: they are decoded once, and held
once however many turns are open. Pure.
"""

from collections import OrderedDict

import msgspec
from msgspec.structs import replace

from schemas.conversation import ToolSpec
from schemas.frames import ABSENT, ParseContext

MIN_BYTES = 1024
"""A smaller context is decoded faster than its tools are looked up."""
KEPT = 64
"""Lists of tools that are known at most."""


class _Told(msgspec.Struct):
    """A context's tools, as they are written."""

    tools: msgspec.Raw = ABSENT


_decode = msgspec.json.Decoder(ParseContext).decode
_decode_told = msgspec.json.Decoder(_Told).decode
_decode_tools = msgspec.json.Decoder(list[ToolSpec]).decode


class Contexts:
    """Decodes parse contexts."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, list[ToolSpec]] = OrderedDict()

    def read(self, raw: msgspec.Raw) -> ParseContext:
        """The context; nobody may change its tools. Raises msgspec.DecodeError for what is none."""
        data = bytes(raw)
        if len(data) < MIN_BYTES:
            return _decode(data)
        tools = bytes(_decode_told(data).tools)
        # Outside of strings, where quotes are bare, no other field has this name.
        head, found, tail = data.partition(b'"tools":' + tools)
        if not found:
            return _decode(data)
        return replace(_decode(head + b'"tools":[]' + tail), tools=self._list(tools))

    def _list(self, tools: bytes) -> list[ToolSpec]:
        known = self._known.get(tools)
        if known is None:
            known = self._known[tools] = _decode_tools(tools)
        self._known.move_to_end(tools)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return known
