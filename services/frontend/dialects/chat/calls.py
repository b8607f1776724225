"""A tool call in the forms of Chat Completions: function, freeform, and the legacy one.

function    {"index":0,"id":…,"type":"function","function":{"name":…,"arguments":…}}
freeform    {"index":0,"id":…,"type":"custom","custom":{"name":…,"input":…}}
legacy      {"name":…,"arguments":…}                                                    in `function_call`
"""

from typing import Any

import msgspec
from msgspec import Raw

from schemas.events import BlockStart
from services.frontend.dialects.freeform import FreeformInput

_encode = msgspec.json.Encoder().encode


class CallWriter:
    """One call of one choice, as its pieces come."""

    __slots__ = ("_head", "_input", "_keep", "_legacy", "_said", "_tail", "_text", "block", "id", "index")

    def __init__(
        self, block: BlockStart, index: int, turn: str, *, freeform: bool, legacy: bool, keep: bool = True
    ) -> None:
        """`keep`: whether `whole` and its kin will be asked for."""
        self.block = block
        self.index = index
        self.id = block.call_id or f"call_{turn}{block.block}"
        self._legacy = legacy
        self._keep = keep
        self._input = FreeformInput() if freeform else None
        self._text: list[str] = []
        self._said = False
        if legacy:
            self._head, self._tail = b'{"function_call":{"arguments":', b"}}"
        else:
            member = b'"custom":{"input":' if freeform else b'"function":{"arguments":'
            self._head, self._tail = b'{"tool_calls":[{"index":%d,%b' % (index, member), b"}}]}"

    def opening(self) -> bytes:
        """The delta with which the call begins: everything but its arguments."""
        if self._legacy:
            return _encode({"function_call": {"name": self.block.name or "", "arguments": ""}})
        return _encode({"tool_calls": [{"index": self.index, **self._document("")}]})

    def piece(self, text: str) -> bytes:
        """The delta for the next piece of the arguments; nothing where none of it is certain yet."""
        if self._input is not None:
            text = self._input.feed(text)
        if not text:
            return b""
        self._said = True
        if self._keep:
            self._text.append(text)
        return self._head + _encode(text) + self._tail

    def plain(self) -> tuple[bytes, bytes] | None:
        """What stands around the next piece's text, where `piece` is to do no more than to put it there."""
        return (self._head, self._tail) if self._said and self._input is None and not self._keep else None

    def end(self, *, complete: bool) -> bytes:
        """The delta for what is missing when the call is over.

        A client must be able to parse the arguments of a complete call, and must not those of one that was cut off.
        """
        missing = ""
        if self._input is not None:
            missing = self._input.end() if complete else ""
        elif not self._said:
            missing = "{}" if complete else "{"
        if not missing:
            return b""
        self._text.append(missing)
        return self._head + _encode(missing) + self._tail

    def whole(self) -> dict[str, Any]:
        """The call as it stands in a message."""
        return self._document("".join(self._text))

    def legacy(self) -> dict[str, Any]:
        """The call as it stands in `function_call`."""
        return {"name": self.block.name or "", "arguments": "".join(self._text)}

    def runnable(self) -> bool:
        """Whether the arguments are what the tool takes: raw text for a freeform one, else a JSON object."""
        if self._input is not None:
            return True
        try:
            msgspec.json.decode("".join(self._text), type=dict[str, Raw])
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def _document(self, arguments: str) -> dict[str, Any]:
        name = self.block.name or ""
        if self._input is not None:
            return {"id": self.id, "type": "custom", "custom": {"name": name, "input": arguments}}
        return {"id": self.id, "type": "function", "function": {"name": name, "arguments": arguments}}
