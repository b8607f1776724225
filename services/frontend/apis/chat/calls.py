"""Writes tool calls in the forms of Chat Completions: function, freeform, and the legacy one.

function    {"index":0,"id":…,"type":"function","function":{"name":…,"arguments":…}}
freeform    {"index":0,"id":…,"type":"custom","custom":{"name":…,"input":…}}
legacy      {"name":…,"arguments":…}                                                    in `function_call`
"""

from typing import Any

import msgspec
from msgspec import Raw

from schemas.events import BlockStart
from services.frontend.apis.shared.decode import is_json
from services.frontend.apis.shared.freeform import FreeformInput, freeform_input

_encode = msgspec.json.Encoder().encode


class CallWriter:
    """Writes one call of one choice, piece by piece."""

    def __init__(self, block: BlockStart, index: int, turn: str, *, freeform: bool, legacy: bool) -> None:
        self.index = index
        self.id = block.call_id or f"call_{turn}{block.block}"
        self._name = block.name or ""
        self._legacy = legacy
        self._input = FreeformInput() if freeform else None
        self._begun = False
        if legacy:
            self._head, self._tail = b'{"function_call":{"arguments":', b"}}"
        else:
            member = b'"custom":{"input":' if freeform else b'"function":{"arguments":'
            self._head, self._tail = b'{"tool_calls":[{"index":%d,%b' % (index, member), b"}}]}"

    def opening(self) -> bytes:
        """The first delta: everything but the arguments."""
        if self._legacy:
            return _encode({"function_call": {"name": self._name, "arguments": ""}})
        return _encode({"tool_calls": [{"index": self.index, **self._document("")}]})

    def piece(self, text: str) -> bytes:
        """The delta for the next piece of the arguments; empty while none of it is certain."""
        if self._input is not None:
            text = self._input.feed(text)
        return self._delta(text)

    def plain(self) -> tuple[bytes, bytes] | None:
        """The bytes around the next piece's text, where `piece` would only splice it in."""
        return (self._head, self._tail) if self._begun and self._input is None else None

    def end(self, *, complete: bool) -> bytes:
        """The last delta. The arguments of a complete call can be parsed; those of an incomplete one cannot."""
        if self._input is not None:
            return self._delta(self._input.end() if complete else "")
        if self._begun:
            return b""
        return self._delta("{}" if complete else "{")

    def whole(self, arguments: str) -> dict[str, Any] | None:
        """The complete call as in a message; None if the arguments of a function are no JSON object."""
        if self._input is not None:
            return self._document(freeform_input(arguments))
        arguments = arguments or "{}"
        return self._document(arguments) if is_json(arguments, dict[str, Raw]) else None

    def _delta(self, text: str) -> bytes:
        if not text:
            return b""
        self._begun = True
        return self._head + _encode(text) + self._tail

    def _document(self, arguments: str) -> dict[str, Any]:
        if self._input is not None:
            return {"id": self.id, "type": "custom", "custom": {"name": self._name, "input": arguments}}
        return {"id": self.id, "type": "function", "function": {"name": self._name, "arguments": arguments}}
