"""The items of a turn: what each is while it comes, and what it is when it is over.

The stream and the whole answer are made of the same items, so they say the same. Nothing here depends on how the
turn's events were cut.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from schemas.events import BlockStart, BlockStop, TokenLogprob, Usage
from services.frontend.dialects.base import Reply
from services.frontend.dialects.freeform import FreeformInput
from services.frontend.dialects.responses.built_in import built_in_call
from services.frontend.dialects.responses.names import CallKind, Named, Names

BUFFERED: frozenset[CallKind] = frozenset({"tool_search", "local_shell", "shell", "apply_patch"})
"""Calls whose item is an object made of the arguments: there is nothing to show before they are whole."""

_PREFIXES = {
    "reasoning": "rs",
    "text": "msg",
    "function": "fc",
    "custom": "ctc",
    "tool_search": "tsc",
    "local_shell": "lsh",
    "shell": "sh",
    "apply_patch": "apc",
}
_encode = msgspec.json.Encoder().encode


class Shape(Struct, frozen=True):
    """What a request said of its answer."""

    names: Names
    echo: Mapping[str, Any]
    sealed: bool = False
    """Thoughts carry `encrypted_content`."""
    summary: bool = False
    """Thoughts are told as their summary, too: that is what clients show."""
    logprobs: bool = False
    prefill: bool = False
    """Nothing was to be written: an answer without output is whole."""
    compacting: bool = False
    """The answer is one compaction item."""
    before: Sequence[Raw] = ()
    """Items that were made before the turn and come first."""
    spent: Usage = Usage()
    """What they took."""


class Closed(Struct, frozen=True):
    """An item that is over."""

    item: Raw
    """As JSON: the item of `output_item.done` and of the Response."""
    told: bool = True
    """It has an `output_item.done`. One that was cut off and could be taken for whole has none: agents act on it."""
    runs: bool = False
    """A complete call with arguments that are what they must be."""


class Item:
    """One block of the turn, as an output item."""

    __slots__ = (
        "_pieces",
        "_reader",
        "_shape",
        "_start",
        "_turn",
        "call_id",
        "id",
        "index",
        "kind",
        "logprobs",
        "named",
    )

    def __init__(self, start: BlockStart, reply: Reply, shape: Shape, index: int) -> None:
        self.index = index
        """Its place in the Response's `output`."""
        self.named: Named | None = None
        self.kind: str = start.kind
        if start.kind == "tool_use":
            self.named = shape.names.of(start.name or "")
            self.kind = self.named.kind
        self.call_id = start.call_id or f"call_{reply.turn}{start.block}"
        self.id = _id(self.kind, reply.turn, index)
        self.logprobs: list[dict[str, Any]] = []
        self._pieces: list[str] = []
        self._reader = FreeformInput() if self.kind == "custom" else None
        self._shape = shape
        self._start = start
        self._turn = reply.turn

    @property
    def is_call(self) -> bool:
        """Whether it is a call of any kind."""
        return self.named is not None

    @property
    def text(self) -> str:
        """All that was shown so far."""
        return "".join(self._pieces)

    @property
    def plain(self) -> Callable[[str], None] | None:
        """Takes the next piece, in place of `feed`, where that shows the piece as it is and does nothing else."""
        if self._reader is not None or self.kind in BUFFERED or (self._shape.logprobs and self.kind == "text"):
            return None
        return self._pieces.append

    def feed(self, text: str, logprobs: list[TokenLogprob] | None) -> str:
        """Takes the next piece; returns what is to be shown of it."""
        if self._reader is not None:
            text = self._reader.feed(text)
        if text:
            self._pieces.append(text)
        if logprobs and self._shape.logprobs and self.kind == "text":
            self.logprobs += [_logprob(token) for token in logprobs]
        return text

    def rest(self, complete: bool) -> str:
        """What is still to be shown at the end: a freeform input that was not spelled as expected, or `{}` for the
        arguments of a complete call that has none."""
        text = ""
        if complete and self._reader is not None:
            text = self._reader.end()
        elif complete and self.is_call and not self._pieces:
            text = "{}"
        if text:
            self._pieces.append(text)
        return text

    def added(self) -> dict[str, Any]:
        """The item when it begins."""
        if self.kind == "reasoning":
            return {"id": self.id, "type": "reasoning", "summary": []}
        if self.kind == "text":
            return {"id": self.id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        return self._call("in_progress", "")

    def close(self, stop: BlockStop, *, cut: bool = False) -> Closed | None:
        """The item when it is over; None where there is nothing to say. `cut`: the turn ended in the middle of it.

        Call `rest` first. Arguments that are not what a tool with a type of its own must have become a plain function
        call (`kind` changes): so they reach the client, which tells the model.
        """
        complete = stop.complete and not cut
        if self.kind == "reasoning":
            return Closed(_made(self._thought(stop.seal, cut=cut)))
        status = "completed" if complete else "incomplete"
        if self.kind == "text":
            return Closed(_made(self._message(status)))
        if self.named is not None and self.named.kind in BUFFERED:
            if not complete:
                return None
            made = built_in_call(self.named.kind, self.id, self.call_id, self.text)
            if made is not None:
                return Closed(_made(made), runs=True)
            self.kind, self.id = "function", _id("function", self._turn, self.index)
        item = _made(self._call(status, self.text))
        if self.kind == "custom":
            return Closed(item, told=complete, runs=complete)
        # Agents act on an item's end without looking at its status: what was cut off has one only where its arguments
        # cannot be taken for whole.
        told = complete or not (_is_json(self.text) or not self.text.strip())
        return Closed(item, told=told, runs=complete and is_object(self.text))

    def _thought(self, seal: str | None, *, cut: bool) -> dict[str, Any]:
        text = Raw(_encode(self.text))
        item: dict[str, Any] = {
            "id": self.id,
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": text}] if self._shape.summary else [],
            "content": [{"type": "reasoning_text", "text": text}],
        }
        if self._shape.sealed:
            item["encrypted_content"] = seal
        if cut:
            item["status"] = "incomplete"
        return item

    def _message(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [self.part()],
        }

    def part(self) -> dict[str, Any]:
        """The text of a message or thought as a content part."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    def _call(self, status: str, text: str) -> dict[str, Any]:
        named = self.named or Named("function", self._start.name or "")
        custom = self.kind == "custom"
        item: dict[str, Any] = {
            "id": self.id,
            "type": "custom_tool_call" if custom else "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": named.name,
            "input" if custom else "arguments": text,
        }
        if named.namespace:
            item["namespace"] = named.namespace
        return item


def _id(kind: str, turn: str, index: int) -> str:
    return f"{_PREFIXES[kind]}_{turn}{index:03d}"


def _made(item: dict[str, Any]) -> Raw:
    return Raw(_encode(item))


def is_object(text: str) -> bool:
    """Whether the text is one whole JSON object."""
    try:
        msgspec.json.decode(text, type=dict[str, Raw])
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _logprob(token: TokenLogprob) -> dict[str, Any]:
    return {
        "token": token.token,
        "logprob": token.logprob,
        "bytes": list(token.data or token.token.encode()),
        "top_logprobs": [
            {"token": top.token, "logprob": top.logprob, "bytes": list(top.data or top.token.encode())}
            for top in token.top
        ],
    }
