"""A turn as the event stream of the Messages API (apis.md A.6).

    BlockStart reasoning                            nothing yet
    Delta "Let me look."                            content_block_start thinking, ping (the first time), thinking_delta
    BlockStop seal=…                                signature_delta, content_block_stop [, reasoning_dispatch]
    BlockStart tool_use name=Read                   content_block_start tool_use, input_json_delta ""
    Delta '{"file_path": "/a'                       input_json_delta
    BlockStop complete                              content_block_stop [, tool_call_dispatch]
    Finish                                          message_delta, message_stop

A text or thinking block opens with its first character, so none is ever empty; the indices that the client sees are
counted here and have no gaps. Agents start a tool at its content_block_stop, while the stream goes on.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from schemas.errors import ErrorInfo
from schemas.events import BlockStart, BlockStop, Delta, Finish, Prepared, TurnEvent
from services.frontend.dialects.base import Reply, failure_of
from services.frontend.dialects.messages.ending import first_usage, last_usage, stop_of
from services.frontend.dialects.messages.errors import error_event
from services.frontend.dialects.messages.wire import UNSEALED

PING = b'event: ping\ndata: {"type":"ping"}\n\n'

_encode = msgspec.json.Encoder().encode
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%s","%s":'
_FIELDS = {
    "text": (b"text_delta", b"text"),
    "reasoning": (b"thinking_delta", b"thinking"),
    "tool_use": (b"input_json_delta", b"partial_json"),
}
_END = b"}}\n\n"


class MessagesStream:
    """Renders one turn."""

    __slots__ = (
        "_block",
        "_calls",
        "_context_management",
        "_head",
        "_index",
        "_omit_thinking",
        "_open",
        "_pinged",
        "_plain",
        "_reply",
        "_said",
        "_told",
    )

    def __init__(self, reply: Reply, *, omit_thinking: bool = False, context_management: bool = False) -> None:
        self._reply = reply
        self._omit_thinking = omit_thinking
        self._context_management = context_management
        self._block: BlockStart | None = None
        self._open = False
        self._index = -1
        self._head = b""
        self._plain = False
        """A delta of the open block is `_head`, its text and `_END`, and changes nothing."""
        self._calls = 0
        self._pinged = False
        self._said = False
        self._told: list[str] = []
        """The open block's text, where it is to be told whole."""

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """`message_start`, with the exact size of the prompt."""
        message: dict[str, Any] = {
            "id": f"msg_{self._reply.turn}",
            "type": "message",
            "role": "assistant",
            "model": self._reply.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": first_usage(prepared[0].prompt_tokens),
        }
        return _event("message_start", {"message": message})

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """The next events. Deltas that came together leave together, as one."""
        if self._plain and len(events) == 1 and type(first := events[0]) is Delta and first.text:
            return self._head + _encode(first.text) + _END
        out: list[bytes] = []
        texts: list[str] = []
        for event in events:
            if isinstance(event, Delta):
                texts.append(event.text)
                continue
            if texts:
                self._delta("".join(texts), out)
                texts.clear()
            if isinstance(event, BlockStart):
                self._start(event, out)
            elif isinstance(event, BlockStop):
                self._stop(event, out)
            else:
                self._end(event, out)
        if texts:
            self._delta("".join(texts), out)
        return b"".join(out)

    def error(self, info: ErrorInfo) -> bytes:
        """The `error` event; nothing follows it."""
        return error_event(info, self._reply.request_id)

    def _start(self, event: BlockStart, out: list[bytes]) -> None:
        self._block = event
        self._open = self._plain = False
        self._said = False
        self._told.clear()
        if event.kind == "tool_use":
            self._announce(event, _tool_use(event, self._reply), out)
            out.append(self._head + b'""' + _END)

    def _announce(self, block: BlockStart, content: dict[str, Any], out: list[bytes]) -> None:
        self._index += 1
        self._open = True
        self._head = _DELTA % (self._index, *_FIELDS[block.kind])
        out.append(_event("content_block_start", {"index": self._index, "content_block": content}))
        if not self._pinged:
            self._pinged = True
            out.append(PING)

    def _delta(self, text: str, out: list[bytes]) -> None:
        block = self._block
        if block is None or not text:
            return
        if not self._open:
            empty: dict[str, Any] = {"type": "text", "text": ""}
            if block.kind == "reasoning":
                empty = {"type": "thinking", "thinking": "", "signature": ""}
            self._announce(block, empty, out)
        if block.kind == "reasoning" and self._omit_thinking:
            return
        tells = self._tells(block)
        if tells:
            self._told.append(text)
        self._plain = not tells
        self._said = True
        out.append(self._head + _encode(text) + _END)

    def _stop(self, event: BlockStop, out: list[bytes]) -> None:
        block, self._block = self._block, None
        self._plain = False
        if block is None or not self._open:
            return
        if block.kind == "reasoning":
            head = _DELTA % (self._index, b"signature_delta", b"signature")
            out.append(head + _encode(event.seal or UNSEALED) + _END)
        if block.kind == "tool_use" and not event.complete and not self._said:
            # No arguments at all would be read as {} and run; the beginning of an object never is.
            out.append(self._head + b'"{"' + _END)
        out.append(_event("content_block_stop", {"index": self._index}))
        if block.kind == "tool_use" and event.complete:
            self._calls += 1
        if event.complete and self._tells(block):
            self._dispatch(block, event.seal, out)

    def _tells(self, block: BlockStart) -> bool:
        return {
            "tool_use": self._reply.dispatch,
            "reasoning": self._reply.dispatch_reasoning,
            "text": False,
        }[block.kind]

    def _dispatch(self, block: BlockStart, seal: str | None, out: list[bytes]) -> None:
        """What an operator or a client can ask for beside the API: the whole block, as a document has it.

        `data.type` is `ping`: the AI SDK dies of a type that it does not know. The others go by the event's name.
        """
        text = "".join(self._told)
        if block.kind == "reasoning":
            name = "reasoning_dispatch"
            content: dict[str, Any] = {"type": "thinking", "thinking": text, "signature": seal or UNSEALED}
        elif is_object(text or "{}"):
            name = "tool_call_dispatch"
            arguments = (text or "{}").encode()
            if b"\n" in arguments or b"\r" in arguments:
                # An event is one line; the model may have put line breaks between the tokens of its JSON.
                arguments = msgspec.json.format(arguments, indent=-1)
            content = {**_tool_use(block, self._reply), "input": Raw(arguments)}
        else:
            return
        data = _encode({"type": "ping", name: {"index": self._index, **content}})
        out.append(b"event: %b\ndata: %b\n\n" % (name.encode(), data))

    def _end(self, event: TurnEvent, out: list[bytes]) -> None:
        failure = failure_of(event)
        if failure is not None:
            out.append(self.error(failure))
        elif isinstance(event, Finish):
            if self._block is not None:
                self._stop(BlockStop(self._block.block, complete=False), out)
            last: dict[str, Any] = {"delta": stop_of(event, self._calls), "usage": last_usage(event.usage)}
            if self._context_management:
                last["context_management"] = {"applied_edits": []}
            out.append(_event("message_delta", last))
            out.append(_event("message_stop", {}))


def is_object(text: str) -> bool:
    """Whether the text is one whole JSON object."""
    try:
        msgspec.json.decode(text, type=dict[str, Raw])
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def call_id(block: BlockStart, turn: str) -> str:
    """The call's id; where the parser gave none, one that is unique all the same."""
    return block.call_id or f"toolu_{turn}{block.block}"


def _tool_use(block: BlockStart, reply: Reply) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": call_id(block, reply.turn),
        "name": block.name or "",
        "input": {},
        "caller": {"type": "direct"},
    }


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encode({"type": name, **fields}) + b"\n\n"
