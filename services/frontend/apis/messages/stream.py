"""Renders a turn as the event stream of the Messages API, or as one Message that merges it.

    BlockStart reasoning                            nothing yet
    Delta "Let me look."                            content_block_start thinking, ping (the first time), thinking_delta
    BlockStop seal=…                                signature_delta, content_block_stop [, reasoning_dispatch]
    BlockStart tool_use name=Read                   content_block_start tool_use, input_json_delta ""
    Delta '{"file_path": "/a'                       input_json_delta
    BlockStop complete                              content_block_stop [, tool_call_dispatch]
    Finish                                          message_delta, message_stop

A text or thinking block opens with its first character, so none is ever empty; the indices that the client sees are
counted here and have no gaps. Agents start a tool at its content_block_stop, while the stream continues.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from schemas.errors import ErrorInfo
from schemas.events import (
    BlockStart,
    BlockStop,
    Dispatch,
    Finish,
    FinishReason,
    HostedResults,
    OutputTokens,
    Prepared,
    TokenLogprob,
    TurnEvent,
    Usage,
    failure_of,
)
from services.frontend.apis.messages.compaction import Compaction, block_events, summary_of
from services.frontend.apis.messages.errors import error_event
from services.frontend.apis.messages.hosted import result_block, shown_id
from services.frontend.apis.messages.wire import UNSEALED
from services.frontend.apis.shared.answers.documents import merge
from services.frontend.apis.shared.answers.turn_renderer import TurnRenderer
from services.frontend.apis.shared.decode import is_json
from services.frontend.apis.shared.token_report import TokenReport
from services.frontend.turns.interfaces import Reply

PING = b'event: ping\ndata: {"type":"ping"}\n\n'

_encode = msgspec.json.Encoder().encode
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%s","%s":'
_FIELDS = {
    "text": (b"text_delta", b"text"),
    "reasoning": (b"thinking_delta", b"thinking"),
    "tool_use": (b"input_json_delta", b"partial_json"),
    "hosted": (b"input_json_delta", b"partial_json"),
}
_END = b"}}\n\n"
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[{}\[\],]', re.DOTALL)
_DEPTHS = {"{": 1, "[": 1, "}": -1, "]": -1}
_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTEXT: "model_context_window_exceeded",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.PAUSE: "pause_turn",
}


class MessagesStream(TurnRenderer):
    """Renders one turn."""

    def __init__(
        self,
        reply: Reply,
        *,
        omit_thinking: bool = False,
        applied_edits: list[dict[str, Any]] | None = None,
        compaction: Compaction | None = None,
    ) -> None:
        """`applied_edits`: None where the request has no `context_management`. `compaction`: the answer begins with
        it."""
        self._reply = reply
        self._compaction = compaction
        self._omit_thinking = omit_thinking
        self._applied_edits = applied_edits
        self._block: BlockStart | None = None
        self._open = False
        self._index = -1
        self._head = b""
        """Of a delta of the open block; `_END` follows its text."""
        self._calls = 0
        self._pinged = False
        self._begun = False
        self._text: list[str] = []
        """The open reasoning, where it is sent again whole."""
        self._call: Dispatch | None = None
        """The open block as a complete call."""
        self._ids = TokenReport()
        self._hosted_uses: Counter[str] = Counter()
        """Searches and fetches that succeeded, by kind."""

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """`message_start`, with the exact size of the prompt, and the part of it that is expected in the KV cache."""
        self._ids.start(prepared[0])
        message: dict[str, Any] = {
            "id": f"msg_{self._reply.turn}",
            "type": "message",
            "role": "assistant",
            "model": self._reply.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _first_usage(prepared[0]),
            **self._ids.prompt(),
        }
        return _event("message_start", {"message": message}) + self._compaction_block()

    def error(self, info: ErrorInfo) -> bytes:
        """The `error` event; nothing follows it."""
        return error_event(info, self._reply.request_id)

    def _compaction_block(self) -> bytes:
        """The block of the compaction, if there is one."""
        if self._compaction is None:
            return b""
        self._index += 1
        return b"".join(_event(name, fields) for name, fields in block_events(self._compaction))

    def _start(self, event: BlockStart, out: list[bytes]) -> None:
        self._block = event
        self._open = self._begun = False
        self.plain = None
        self._text.clear()
        self._call = None
        if event.kind in ("tool_use", "hosted"):
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

    def _delta(self, text: str, tokens: list[TokenLogprob], out: list[bytes]) -> None:
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
        kept = block.kind == "reasoning" and self._reply.dispatch_reasoning
        if kept:
            self._text.append(text)
        self.plain = None if kept else (self._head, _END)
        self._begun = True
        out.append(self._head + _encode(text) + _END)

    def _stop(self, event: BlockStop, out: list[bytes]) -> None:
        block, self._block = self._block, None
        self.plain = None
        if block is None or not self._open:
            return
        if block.kind == "reasoning":
            head = _DELTA % (self._index, b"signature_delta", b"signature")
            out.append(head + _encode(event.seal or UNSEALED) + _END)
        if block.kind == "tool_use" and not event.complete and not self._begun:
            # No arguments at all would be read as {} and run; the beginning of an object never is.
            out.append(self._head + b'"{"' + _END)
        out.append(_event("content_block_stop", {"index": self._index}))
        if block.kind == "tool_use" and event.complete:
            self._calls += 1
        if block.kind == "reasoning" and event.complete and self._reply.dispatch_reasoning:
            self._send_whole(block, "".join(self._text), event.seal, out)
        elif self._call is not None and event.complete and self._reply.dispatch:
            self._send_whole(block, self._call.arguments or "{}", None, out)

    def _dispatch(self, event: Dispatch) -> None:
        self._call = event

    def _tokens(self, event: OutputTokens, out: list[bytes]) -> None:
        self._ids.add(event)

    def _results(self, event: HostedResults, out: list[bytes]) -> None:
        for result in event.results:
            self._index += 1
            self._hosted_uses[result.kind] += result.error is None
            block = {"index": self._index, "content_block": result_block(result)}
            out.append(_event("content_block_start", block))
            out.append(_event("content_block_stop", {"index": self._index}))

    def _send_whole(self, block: BlockStart, text: str, seal: str | None, out: list[bytes]) -> None:
        """An extra event on request: the whole block, as in a document.

        `data.type` is `ping`, since the AI SDK fails on unknown types. Other clients use the event's name.
        """
        if block.kind == "reasoning":
            name = "reasoning_dispatch"
            content: dict[str, Any] = {"type": "thinking", "thinking": text, "signature": seal or UNSEALED}
        elif is_json(text, dict[str, Raw]):
            name = "tool_call_dispatch"
            arguments = text.encode()
            if b"\n" in arguments or b"\r" in arguments:
                # An event is one line; the model may have put line breaks between the tokens of its JSON.
                arguments = msgspec.json.format(arguments, indent=-1)
            content = {**_tool_use(block, self._reply), "input": Raw(arguments)}
        else:
            return
        data = _encode({"type": "ping", name: {"index": self._index, **content}})
        out.append(b"event: %b\ndata: %b\n\n" % (name.encode(), data))

    def _finish(self, event: Finish, out: list[bytes]) -> None:
        if self._block is not None:
            self._stop(BlockStop(self._block.block, complete=False), out)
        usage = _last_usage(event.usage)
        if self._hosted_uses:
            uses = {f"{kind}_requests": self._hosted_uses[kind] for kind in ("web_search", "web_fetch")}
            usage["server_tool_use"] = uses
        if self._compaction is not None:
            usage["iterations"] = _iterations(compaction=self._compaction.usage, message=event.usage)
        out.append(self._last({"delta": _stop(event, self._calls), "usage": usage, **self._ids.output()}))

    def _last(self, fields: dict[str, Any]) -> bytes:
        """The last events of a message, with these fields of its end."""
        if self._applied_edits is not None:
            fields["context_management"] = {"applied_edits": self._applied_edits}
        return _event("message_delta", fields) + _event("message_stop", {})


class CompactionStream(MessagesStream):
    """Renders a turn that writes a summary as a message with the compaction alone: the client asked for a pause."""

    def __init__(self, reply: Reply, **options: Any) -> None:
        super().__init__(reply, **options)
        self._events: list[TurnEvent] = []

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """See `MessagesStream.events`. Nothing is sent before the end."""
        self._events += events
        last = events[-1]
        if (failure := failure_of(last)) is not None:
            return self.error(failure)
        if not isinstance(last, Finish):
            return b""
        self._compaction = summary_of(self._events)
        usage = _last_usage(Usage()) | {"iterations": _iterations(compaction=last.usage)}
        stop = {"stop_reason": "compaction", "stop_sequence": None}
        return self._compaction_block() + self._last({"delta": stop, "usage": usage})


def merged_message(events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """The Message of a whole stream.

    The input of a call that was cut off has those of its members that are whole, as the SDKs make it of the stream; the
    turn's `stop_reason` shows the cut.
    """
    message: dict[str, Any] = {}
    content: list[dict[str, Any]] = []
    for event in events:
        kind = event.pop("type")
        if kind == "message_start":
            message = event["message"]
        elif kind == "content_block_start":
            content.append(event["content_block"])
        elif kind == "content_block_delta":
            merge(content[-1], {name: text for name, text in event["delta"].items() if name != "type"})
        elif kind == "message_delta":
            usage = message["usage"] | event.pop("usage")
            message |= {"content": content, **event.pop("delta"), "usage": usage, **event}
    for block in content:
        if "partial_json" in block:
            block["input"] = Raw(_input(block.pop("partial_json")).encode())
    return message


def _stop(finish: Finish, complete_calls: int) -> dict[str, Any]:
    """`stop_reason` and `stop_sequence`. A turn cut off after a complete call has `max_tokens`, as natively."""
    reason = _REASONS.get(finish.reason, "end_turn")
    if reason == "end_turn" and complete_calls:
        reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": finish.stop_string if reason == "stop_sequence" else None}


def _first_usage(prepared: Prepared) -> dict[str, Any]:
    """Usage before decoding begins, with the cached part that the worker expects; the end of the stream is exact."""
    return {
        "input_tokens": prepared.prompt_tokens - prepared.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": prepared.cached,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 1,
        "service_tier": "standard",
    }


def _usage(usage: Usage) -> dict[str, Any]:
    """Token counts; `input_tokens` excludes those that were read from the cache."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }


def _last_usage(usage: Usage) -> dict[str, Any]:
    """Usage of the whole turn."""
    return _usage(usage) | {"output_tokens_details": {"thinking_tokens": usage.reasoning}}


def _iterations(**usages: Usage) -> list[dict[str, Any]]:
    """Usage of each of several turns, by its kind."""
    return [{"type": kind, **_usage(usage)} for kind, usage in usages.items()]


def _input(text: str) -> str:
    """The arguments of a call as an object: unchanged if they are one, else without the member that was cut off."""
    depth, end = 0, 1
    for token in _JSON_TOKEN.finditer(text):
        depth += _DEPTHS.get(token[0], 0)
        if token[0] == "," and depth == 1:
            end = token.start()
    # A value at the very end is whole if something closes it; a number may go on.
    closed = [text + "}"] if text.endswith(('"', "]", "}")) else []
    return next((known for known in (text, *closed, text[:end] + "}") if is_json(known, dict[str, Raw])), "{}")


def _tool_use(block: BlockStart, reply: Reply) -> dict[str, Any]:
    call_id = block.call_id or f"toolu_{reply.turn}{block.block}"
    hosted = block.kind == "hosted"
    return {
        "type": "server_tool_use" if hosted else "tool_use",
        "id": shown_id(call_id) if hosted else call_id,
        "name": block.name or "",
        "input": {},
        "caller": {"type": "direct"},
    }


def _event(name: str, fields: dict[str, Any]) -> bytes:
    """An event of the stream."""
    return b"event: " + name.encode() + b"\ndata: " + _encode({"type": name, **fields}) + b"\n\n"
