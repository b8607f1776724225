"""The output items of a turn: each while it is streamed, and as it is in the end.

The stream and the whole answer are made of the same items. Nothing here depends on how the turn's events were split.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from schemas.events import BlockStart, BlockStop, TokenLogprob, Usage
from services.frontend.apis.base import Reply
from services.frontend.apis.common.decode import is_json
from services.frontend.apis.common.freeform import FreeformInput
from services.frontend.apis.common.openai.chunks import logprob
from services.frontend.apis.responses.request.tools import CallKind, ToolName, tool_name

BUFFERED: frozenset[CallKind] = frozenset({"tool_search", "local_shell", "shell", "apply_patch", "web_search"})
"""Calls whose item is an object made of the arguments, and is sent when they are complete."""

_PREFIXES = {
    "reasoning": "rs",
    "text": "msg",
    "function": "fc",
    "custom": "ctc",
    "tool_search": "tsc",
    "local_shell": "lsh",
    "shell": "sh",
    "apply_patch": "apc",
    "web_search": "ws",
}
_encode = msgspec.json.Encoder().encode


class Shape(Struct, frozen=True):
    """The request's settings for its answer."""

    names: Mapping[str, ToolName]
    """Tools by the names under which the model sees them."""
    echo: Mapping[str, Any]
    """The members of the Response object that repeat the request."""
    sealed: bool = False
    """Reasoning carries `encrypted_content`."""
    summary: bool = False
    """Reasoning is also sent as its summary, which is what clients show."""
    sources: bool = False
    """Web searches carry the URLs that they found."""
    logprobs: bool = False
    prefill: bool = False
    """Nothing is generated: an answer without output is complete."""
    compacting: bool = False
    """The answer is one compaction item."""
    before: Sequence[Raw] = ()
    """Items that were made before the turn and come first."""
    spent: Usage = Usage()
    """The tokens that `before` cost."""


class ClosedItem(Struct, frozen=True):
    """An item that is over."""

    item: Raw
    """The JSON in `output_item.done` and in the Response."""
    done: bool = True
    """Whether to send `output_item.done`. Agents act on it, so a cut-off call that looks whole has none."""
    dispatchable: bool = False
    """A complete call with valid arguments."""


class OutputItem:
    """One block of the turn as an output item."""

    def __init__(self, start: BlockStart, reply: Reply, shape: Shape, index: int) -> None:
        self.index = index
        """Position in the Response's `output`."""
        self.name: ToolName | None = None
        """Set for a call of any kind."""
        self.kind: str = start.kind
        self.started = start
        if start.kind in ("tool_use", "hosted"):
            self.name = tool_name(shape.names, start.name or "")
            self.kind = self.name.kind
        self.call_id = start.call_id or f"call_{reply.turn}{start.block}"
        self.id = _id(self.kind, reply.turn, index)
        self.logprobs: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        """Of the text; set before `close`."""
        self._pieces: list[str] = []
        self._freeform = FreeformInput() if self.kind == "custom" else None
        self._shape = shape
        self._turn = reply.turn

    @property
    def text(self) -> str:
        """The text that was sent so far."""
        return "".join(self._pieces)

    @property
    def append(self) -> Callable[[str], None] | None:
        """Takes the next piece in place of `feed` where that returns each piece unchanged; None elsewhere."""
        if self._freeform is not None or self.kind in BUFFERED or (self._shape.logprobs and self.kind == "text"):
            return None
        return self._pieces.append

    def feed(self, text: str, logprobs: list[TokenLogprob] | None) -> str:
        """Takes the next piece; returns the text to send."""
        if self._freeform is not None:
            text = self._freeform.feed(text)
        if text:
            self._pieces.append(text)
        if logprobs and self._shape.logprobs and self.kind == "text":
            self.logprobs += map(logprob, logprobs)
        return text

    def rest(self, complete: bool) -> str:
        """The text to send at the end: a freeform input that was not spelled as expected, or `{}` for a complete call
        without arguments."""
        text = ""
        if complete and self._freeform is not None:
            text = self._freeform.end()
        elif complete and self.name is not None and not self._pieces:
            text = "{}"
        if text:
            self._pieces.append(text)
        return text

    def added(self) -> dict[str, Any]:
        """The item when it begins."""
        if self.kind == "reasoning":
            return {"id": self.id, "type": "reasoning", "summary": []}
        if self.kind == "text":
            return self._message("in_progress", [])
        return self._call("in_progress", "")

    def part(self) -> dict[str, Any]:
        """The text of a message or of reasoning as a content part."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": self.annotations, "logprobs": self.logprobs}

    def close(self, stop: BlockStop, *, cut: bool = False) -> ClosedItem | None:
        """The item when it is over; None for a cut-off call of a built-in tool. `cut`: the turn ended in its middle.

        Call `rest` first. A call of a built-in tool whose arguments are invalid becomes a function call (`kind`
        changes): the client then returns an error to the model.
        """
        complete = stop.complete and not cut
        status = "completed" if complete else "incomplete"
        if self.kind == "reasoning":
            return ClosedItem(_raw(self._reasoning(stop.seal, cut=cut)))
        if self.kind == "text":
            return ClosedItem(_raw(self._message(status, [self.part()])))
        if self.kind in BUFFERED:
            if not complete:
                return None
            call = _built_in_call(self.kind, self.text)
            if call is not None:
                head = {"id": self.id, "type": f"{self.kind}_call", "status": "completed", "call_id": self.call_id}
                return ClosedItem(_raw(head | call), dispatchable=True)
            self.kind, self.id = "function", _id("function", self._turn, self.index)
        item = _raw(self._call(status, self.text))
        if self.kind == "custom":
            return ClosedItem(item, done=complete, dispatchable=complete)
        done = complete or (bool(self.text.strip()) and not is_json(self.text, Raw))
        return ClosedItem(item, done=done, dispatchable=complete and is_json(self.text, dict[str, Raw]))

    def _reasoning(self, seal: str | None, *, cut: bool) -> dict[str, Any]:
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

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _call(self, status: str, text: str) -> dict[str, Any]:
        name = self.name or ToolName("function", "")
        custom = self.kind == "custom"
        item: dict[str, Any] = {
            "id": self.id,
            "type": "custom_tool_call" if custom else "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": name.name,
            "input" if custom else "arguments": text,
        }
        if name.namespace:
            item["namespace"] = name.namespace
        return item


class _LocalShell(Struct, omit_defaults=True):
    command: list[str]
    env: dict[str, str] | None = None
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class _Shell(Struct):
    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class _Delete(Struct, tag="delete_file"):
    path: str


class _Create(_Delete, tag="create_file"):
    diff: str


class _Update(_Create, tag="update_file"):
    pass


_local_shell = msgspec.json.Decoder(_LocalShell)
_shell = msgspec.json.Decoder(_Shell)
_patch = msgspec.json.Decoder(_Create | _Update | _Delete)
_object = msgspec.json.Decoder(dict[str, Raw])


def _built_in_call(kind: str, arguments: str) -> dict[str, Any] | None:
    """The members that a complete call of a built-in tool has of its own; None where the arguments are invalid."""
    try:
        if kind == "local_shell":
            action = _local_shell.decode(arguments)
            members = {key: value for key, value in msgspec.to_builtins(action).items() if value is not None}
            return {"action": {"type": "exec", **members, "env": action.env or {}}}
        if kind == "shell":
            return {"action": _shell.decode(arguments), "environment": None}
        if kind == "apply_patch":
            return {"operation": _patch.decode(arguments)}
        _object.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return None
    # An event is one line, whatever line breaks the model put between its tokens.
    return {"arguments": Raw(msgspec.json.format(arguments.encode(), indent=-1)), "execution": "client"}


def _id(kind: str, turn: str, index: int) -> str:
    return f"{_PREFIXES[kind]}_{turn}{index:03d}"


def _raw(item: dict[str, Any]) -> Raw:
    return Raw(_encode(item))
