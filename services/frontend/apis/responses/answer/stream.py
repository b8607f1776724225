"""Renders a turn as the event stream of the Responses API, and as one document.

    start                                   response.created, response.in_progress
    Delta "Let me look."                    output_item.added reasoning, content_part.added, reasoning_text.delta
    BlockStop seal=…                        reasoning_text.done, content_part.done, output_item.done
    BlockStart tool_use name=exec_command   output_item.added function_call
    Delta '{"cmd": "l'                      function_call_arguments.delta
    BlockStop complete                      function_call_arguments.done, output_item.done [, tool_call_dispatch]
    Finish                                  response.completed, [DONE]

A text or reasoning item opens with its first character, so none is ever empty. Codex and the SDK's tool runner start a
tool at its `output_item.done`, while the stream goes on. A message's end waits for the next event, which shows whether
the turn was cut off in it.

A requested summary is the whole reasoning: its pieces are sent as the summary's, and the raw text follows at the end of
the item. OpenClaw shows the pieces of both, so it would show reasoning twice that came as both; the AI SDK and Codex
show the summary only.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from schemas.errors import ErrorInfo, raised
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Finish,
    HostedResults,
    OutputTokens,
    Prepared,
    TokenLogprob,
    TurnEvent,
)
from services.frontend.apis.base import Reply, failure_of
from services.frontend.apis.responses.answer.citations import url_citations
from services.frontend.apis.responses.answer.document import ResponseState
from services.frontend.apis.responses.answer.items import BUFFERED, ClosedItem, OutputItem, Shape
from services.frontend.apis.responses.answer.recording import EventPacker
from services.frontend.apis.responses.request.hosted import call_item, results_item

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
"""An event, because Codex takes no comment for a sign of life. The TypeScript helper accepts no other type without
content; openai-python and the AI SDK skip it."""

_encode = msgspec.json.Encoder().encode
_DELTA = b'event: %s\ndata: {"type":"%s","item_id":"%s","output_index":%d%s,"sequence_number":'
_DELTAS: dict[str, tuple[bytes, bytes]] = {
    "text": (b"response.output_text.delta", b',"content_index":0'),
    "reasoning": (b"response.reasoning_text.delta", b',"content_index":0'),
    "summary": (b"response.reasoning_summary_text.delta", b',"summary_index":0'),
    "function": (b"response.function_call_arguments.delta", b""),
    "custom": (b"response.custom_tool_call_input.delta", b""),
}
_NO_LOGPROBS = b',"logprobs":[]}\n\n'
_END = b"}\n\n"


class ResponsesStream:
    """Renders one turn."""

    def __init__(self, reply: Reply, shape: Shape, *, recorded: bool = False) -> None:
        """`recorded`: keep a compressed copy of the stream."""
        self.state = ResponseState(reply, shape)
        self._packer = EventPacker() if recorded else None
        self._block: BlockStart | None = None
        self._item: OutputItem | None = None
        self._pending_stop: BlockStop | None = None
        """The end of a message, until the next event."""
        self._head = b""
        self._tail = b""
        self._append: Callable[[str], None] | None = None
        """Stores the text of the next delta, where that needs no more than splicing between `_head` and `_tail`."""
        self._sequence = 0
        self._item_reply = reply
        """Has the id of the turn at work, after which items are named."""
        self._searches: dict[str, OutputItem] = {}
        """Searches without results, by call id."""
        self._titles: dict[str, str] = {}
        """Of the pages that searches found, by URL."""

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """`response.created` and `response.in_progress`, and the items that were made before the turn."""
        self.state.tokens.start(prepared[0])
        document = _encode(self.state.document())
        out: list[bytes] = []
        self._event("response.created", {"response": Raw(document)}, out)
        self._event("response.in_progress", {"response": Raw(document)}, out)
        for item in self.state.shape.before:
            self._whole_item(item, out)
        return self._rendered(out)

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """The next events. Deltas that came together are sent as one."""
        if self._append is not None and len(events) == 1 and type(first := events[0]) is Delta and first.text:
            self._append(first.text)
            number = self._sequence
            self._sequence = number + 1
            data = b'%b%d,"delta":%b%b' % (self._head, number, _encode(first.text), self._tail)
            if self._packer is not None:
                self._packer.add(data)
            return data
        out: list[bytes] = []
        texts: list[str] = []
        logprobs: list[TokenLogprob] = []
        for event in events:
            if isinstance(event, Delta):
                texts.append(event.text)
                if event.logprobs:
                    logprobs += event.logprobs
                continue
            if texts:
                self._delta("".join(texts), logprobs, out)
                texts.clear()
                logprobs = []
            if isinstance(event, BlockStart):
                self._start(event, out)
            elif isinstance(event, BlockStop):
                self._stop(event, out)
            elif isinstance(event, OutputTokens):
                self.state.tokens.add(event)
            elif isinstance(event, HostedResults):
                self._found(event, out)
            else:
                self._end(event, out)
        if texts:
            self._delta("".join(texts), logprobs, out)
        return self._rendered(out)

    def error(self, info: ErrorInfo) -> bytes:
        """`response.failed`, the last event."""
        out: list[bytes] = []
        self._fail(info, out)
        return self._rendered(out)

    def break_off(self) -> bytes:
        """The end of a cancelled turn: that of a message that was whole. A half item is incomplete in the Response."""
        out: list[bytes] = []
        if not self.state.over:
            self._break_off(out)
        return self._rendered(out)

    def recording(self) -> bytes:
        """The stream so far, for `unpack_events`; empty where it is not recorded."""
        return b"" if self._packer is None else self._packer.packed()

    def _rendered(self, out: list[bytes]) -> bytes:
        data = b"".join(out)
        if self._packer is not None:
            self._packer.add(data)
        return data

    def _start(self, event: BlockStart, out: list[bytes]) -> None:
        self._settle(out)
        self._block = event
        self._item = self._append = None
        if event.kind in ("tool_use", "hosted"):
            item = self._item = self._new(event)
            if item.kind not in BUFFERED:
                self._announce(item, out)

    def _delta(self, text: str, logprobs: list[TokenLogprob], out: list[bytes]) -> None:
        item = self._item
        if item is None:
            if self._block is None or not text:
                return
            item = self._item = self._new(self._block)
            self._announce(item, out)
        shown = item.feed(text, logprobs)
        if shown and item.kind not in BUFFERED:
            self._show(item, shown, logprobs, out)
            self._append = item.append

    def _stop(self, event: BlockStop, out: list[bytes]) -> None:
        self._block = self._append = None
        if self._item is not None and self._item.kind == "text":
            self._pending_stop = event
        elif self._item is not None:
            self._close(self._item, event, out)

    def _settle(self, out: list[bytes], *, cut: bool = False) -> None:
        """Ends the message whose end is pending."""
        stop, self._pending_stop = self._pending_stop, None
        if stop is not None and self._item is not None:
            self._close(self._item, stop, out, cut=cut)

    def _end(self, event: TurnEvent, out: list[bytes]) -> None:
        if self.state.over:
            return
        failure = failure_of(event)
        if failure is not None:
            self._fail(failure, out)
        elif isinstance(event, Finish):
            self._finish(event, out)

    def _finish(self, event: Finish, out: list[bytes]) -> None:
        cut = self.state.cut_by(event)
        if self._block is not None:
            self._block = None
            if self._item is not None:
                self._close(self._item, BlockStop(0, complete=False), out, cut=True)
        self._settle(out, cut=cut)
        self.state.finish(event)
        self._last(out)

    def _fail(self, info: ErrorInfo, out: list[bytes]) -> None:
        if self.state.over:
            return
        self._break_off(out)
        self.state.fail(info)
        self._last(out)

    def _search(self, item: OutputItem, out: list[bytes]) -> None:
        """A call of a hosted tool is complete: it is running."""
        call = call_item(item.id, item.started.name or "", item.text, "in_progress")
        self._searches[item.call_id] = item
        self._event("response.output_item.added", {"output_index": item.index, "item": call}, out)
        for step in ("in_progress", "searching"):
            self._event(f"response.web_search_call.{step}", _place(item), out)
        self.state.items.append(call)

    def _found(self, event: HostedResults, out: list[bytes]) -> None:
        """The results of searches, and the item that carries them."""
        carried = [result for result in event.results if result.call_id in self._searches]
        for result in carried:
            item = self._searches.pop(result.call_id)
            self._titles |= {source.url: source.title for source in result.sources}
            sources = [source.url for source in result.sources] if self.state.shape.sources else None
            call = call_item(item.id, result.kind, item.text, "failed" if result.error else "completed", sources)
            self.state.items[item.index] = call
            self._event("response.web_search_call.completed", _place(item), out)
            self._event("response.output_item.done", {"output_index": item.index, "item": call}, out)
        if carried:
            id = f"rs_{self._item_reply.turn}{len(self.state.items):03d}"
            self._whole_item(results_item(id, carried), out)
        self._item_reply = msgspec.structs.replace(self._item_reply, turn=event.turn)

    def _break_off(self, out: list[bytes]) -> None:
        self._settle(out)
        for item in self._searches.values():
            self.state.items[item.index] = call_item(item.id, item.started.name or "", item.text, "failed")
        self._searches.clear()
        if self._item is not None:
            # A half item gets no end: agents that try again keep items that have one.
            closed = self._item.close(BlockStop(0, complete=False), cut=True)
            if closed is not None:
                self.state.items.append(closed.item)
            self._item = self._append = None

    def _last(self, out: list[bytes]) -> None:
        self._event(f"response.{self.state.status}", {"response": self.state.document()}, out)
        out.append(DONE)

    def _new(self, block: BlockStart) -> OutputItem:
        return OutputItem(block, self._item_reply, self.state.shape, len(self.state.items))

    def _whole_item(self, item: Raw, out: list[bytes]) -> None:
        place = {"output_index": len(self.state.items), "item": item}
        self._event("response.output_item.added", place, out)
        self._event("response.output_item.done", place, out)
        self.state.items.append(item)

    def _announce(self, item: OutputItem, out: list[bytes]) -> None:
        self._event("response.output_item.added", {"output_index": item.index, "item": item.added()}, out)
        self._head = _head(item, item.kind)
        self._tail = _NO_LOGPROBS if item.kind == "text" else _END
        if item.name is not None:
            return
        place = _place(item)
        self._event("response.content_part.added", {**place, "content_index": 0, "part": item.part()}, out)
        if item.kind == "reasoning" and self.state.shape.summary:
            self._head = _head(item, "summary")
            part = {"type": "summary_text", "text": ""}
            self._event("response.reasoning_summary_part.added", {**place, "summary_index": 0, "part": part}, out)

    def _show(self, item: OutputItem, text: str, logprobs: Sequence[TokenLogprob], out: list[bytes]) -> None:
        tail = self._tail
        if logprobs and item.kind == "text" and self.state.shape.logprobs:
            tail = b',"logprobs":' + _encode(item.logprobs[-len(logprobs) :]) + _END
        out.append(b'%b%d,"delta":%b%b' % (self._head, self._sequence, _encode(text), tail))
        self._sequence += 1

    def _close(self, item: OutputItem, stop: BlockStop, out: list[bytes], *, cut: bool = False) -> None:
        self._item = self._append = None
        if item.started.kind == "hosted":
            if stop.complete and not cut:
                self._search(item, out)
            return
        buffered = item.kind in BUFFERED
        rest = item.rest(stop.complete and not cut)
        if rest and not buffered:
            self._show(item, rest, (), out)
        if self._titles and item.kind == "text":
            item.annotations = url_citations(item.text, self._titles)
        closed = item.close(stop, cut=cut)
        if closed is None:
            return
        self.state.items.append(closed.item)
        if not closed.done:
            return
        if buffered and item.kind in BUFFERED:
            self._event("response.output_item.added", {"output_index": item.index, "item": closed.item}, out)
        elif buffered:  # it became a function call
            self._announce(item, out)
            self._show(item, item.text, (), out)
        self._content_done(item, out)
        self._event("response.output_item.done", {"output_index": item.index, "item": closed.item}, out)
        self._dispatch(item, closed, out)

    def _content_done(self, item: OutputItem, out: list[bytes]) -> None:
        """The events that repeat the whole content of the item."""
        place = _place(item)
        content = {**place, "content_index": 0}
        if item.kind == "function":
            done = {**place, "arguments": item.text, "name": item.name.name if item.name is not None else ""}
            self._event("response.function_call_arguments.done", done, out)
        elif item.kind == "custom":
            self._event("response.custom_tool_call_input.done", {**place, "input": item.text}, out)
        elif item.kind in ("text", "reasoning"):
            part = item.part()
            for index, annotation in enumerate(item.annotations):
                fields = {**content, "annotation_index": index, "annotation": annotation}
                self._event("response.output_text.annotation.added", fields, out)
            done = {name: value for name, value in part.items() if name in ("text", "logprobs")}
            self._event(f"response.{part['type']}.done", {**content, **done}, out)
            self._event("response.content_part.done", {**content, "part": part}, out)
            if item.kind == "reasoning" and self.state.shape.summary:
                summary = {**place, "summary_index": 0}
                part = {**part, "type": "summary_text"}
                self._event("response.reasoning_summary_text.done", {**summary, "text": part["text"]}, out)
                self._event("response.reasoning_summary_part.done", {**summary, "part": part}, out)

    def _dispatch(self, item: OutputItem, closed: ClosedItem, out: list[bytes]) -> None:
        """The dispatch events, which an operator or a client switches on. They have no sequence number."""
        reply = self.state.reply
        if item.name is not None:
            name = "tool_call_dispatch" if reply.dispatch and closed.dispatchable else None
        else:
            name = "reasoning_dispatch" if reply.dispatch_reasoning and item.kind == "reasoning" else None
        if name is not None:
            data = _encode({"type": name, "output_index": item.index, "item": closed.item})
            out.append(b"event: %b\ndata: %b\n\n" % (name.encode(), data))

    def _event(self, name: str, fields: dict[str, Any], out: list[bytes]) -> None:
        event = name.encode()
        out.append(
            b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b\n\n'
            % (event, event, self._sequence, _encode(fields)[1:])
        )
        self._sequence += 1


class ResponsesCollector:
    """Collects one turn into a document: it keeps the final state of the stream, so that both agree."""

    def __init__(self, stream: ResponsesStream, user_messages: Sequence[Raw] | None = None) -> None:
        """`user_messages`: set for POST /v1/responses/compact, whose document repeats those of the conversation."""
        self.stream = stream
        self._user_messages = user_messages

    def start(self, prepared: Sequence[Prepared]) -> None:
        """See `Collector.start`."""
        self.stream.start(prepared)

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        """See `Collector.events`."""
        self.stream.events(events, choice)

    def body(self) -> bytes:
        """See `Collector.body`. Raises TurnwireError where a compaction has no summary."""
        if self.stream.state.failure is not None:
            raise raised(self.stream.state.failure)
        document = self.stream.state.document()
        if self._user_messages is not None:
            document = {
                "id": document["id"],
                "object": "response.compaction",
                "created_at": document["created_at"],
                "output": [*self._user_messages, *document["output"]],
                "usage": document["usage"],
            }
        return msgspec.json.encode(document)


def payloads(rendered: bytes) -> list[bytes]:
    """The JSON of every event in a rendered stream, for WebSocket frames or replays. In a whole stream, the event with
    `sequence_number` n is at index n: dispatch events and `[DONE]` are left out."""
    frames = rendered.split(b"\n\n")
    return [frame.partition(b"\ndata: ")[2] for frame in frames if frame.startswith(b"event: response.")]


def sse_frame(payload: bytes) -> bytes:
    """One of the `payloads` as it stood in the stream."""
    start = len(b'{"type":"')
    return b"event: %b\ndata: %b\n\n" % (payload[start : payload.index(b'"', start)], payload)


def _head(item: OutputItem, kind: str) -> bytes:
    name, index = _DELTAS[kind]
    return _DELTA % (name, name, item.id.encode(), item.index, index)


def _place(item: OutputItem) -> dict[str, Any]:
    return {"item_id": item.id, "output_index": item.index}
