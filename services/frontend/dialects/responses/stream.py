"""A turn as the event stream of the Responses API (apis.md B.6, clients.md 7).

    start                                   response.created, response.in_progress
    Delta "Let me look."                    output_item.added reasoning, content_part.added, reasoning_text.delta
    BlockStop seal=…                        reasoning_text.done, content_part.done, output_item.done
    BlockStart tool_use name=exec_command   output_item.added function_call
    Delta '{"cmd": "l'                      function_call_arguments.delta
    BlockStop complete                      function_call_arguments.done, output_item.done [, tool_call_dispatch]
    Finish                                  response.completed, [DONE]

A text or reasoning item opens with its first character, so none is ever empty. Codex and the SDK's tool runner start a
tool at its `output_item.done`, while the stream goes on. A message's end waits for what comes next: whether the turn
was cut off in it is known only then.

Where the request asks for a summary, that is the whole thought. Its pieces then come as the summary's and the raw text
follows at the end of the item: OpenClaw writes the pieces of both one after the other, so a thought that came as both
would be shown twice; the AI SDK and Codex show the summary only.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from schemas.errors import ErrorInfo
from schemas.events import BlockStart, BlockStop, Delta, Finish, Prepared, TokenLogprob, TurnEvent
from services.frontend.dialects.base import Reply, failure_of
from services.frontend.dialects.responses.document import Status
from services.frontend.dialects.responses.output import BUFFERED, Closed, Item, Shape
from services.frontend.dialects.responses.state import State

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
"""A data event: Codex takes no comment for a sign of life. The TypeScript helper knows this type and no other that says
nothing; openai-python and the AI SDK pass over it (clients.md 4.5, apis.md B.6)."""

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

    __slots__ = ("_block", "_head", "_held", "_item", "_plain", "_sequence", "_state", "_tail")

    def __init__(self, reply: Reply, shape: Shape) -> None:
        self._state = State(reply, shape)
        self._block: BlockStart | None = None
        self._item: Item | None = None
        self._held: BlockStop | None = None
        self._head = b""
        self._tail = b""
        self._plain: Callable[[str], None] | None = None
        """Takes the text of the open item's next delta, where that is but spliced between `_head` and `_tail`."""
        self._sequence = 0

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        """`response.created` and `response.in_progress`, and the items that were made before the turn."""
        document = _encode(self._state.document())
        out: list[bytes] = []
        self._event("response.created", {"response": Raw(document)}, out)
        self._event("response.in_progress", {"response": Raw(document)}, out)
        for item in self._state.shape.before:
            place = {"output_index": len(self._state.items), "item": item}
            self._event("response.output_item.added", place, out)
            self._event("response.output_item.done", place, out)
            self._state.items.append(item)
        return b"".join(out)

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        """The next events. Deltas that came together leave together, as one."""
        if self._plain is not None and len(events) == 1 and type(first := events[0]) is Delta and first.text:
            self._plain(first.text)
            number = self._sequence
            self._sequence = number + 1
            return b'%b%d,"delta":%b%b' % (self._head, number, _encode(first.text), self._tail)
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
            else:
                self._end(event, out)
        if texts:
            self._delta("".join(texts), logprobs, out)
        return b"".join(out)

    def error(self, info: ErrorInfo) -> bytes:
        """`response.failed`; nothing follows it."""
        out: list[bytes] = []
        self._fail(info, out)
        return b"".join(out)

    def break_off(self) -> bytes:
        """What is said of a turn that was cancelled: no more than the end of a message that was whole. What was half
        there is an incomplete item of the response. Nothing follows."""
        out: list[bytes] = []
        if not self._state.over:
            self._break_off(out)
        return b"".join(out)

    def response(self, status: Status | None = None) -> dict[str, Any]:
        """The Response object as it stands: `in_progress` until the turn has ended. `status` overrides the state, for
        one that was cancelled."""
        return self._state.document(status)

    def output_items(self) -> list[Raw]:
        """The items that are finished, as JSON."""
        return list(self._state.items)

    @property
    def failure(self) -> ErrorInfo | None:
        """Why the Response failed."""
        return self._state.failure

    def _start(self, event: BlockStart, out: list[bytes]) -> None:
        self._settle(out)
        self._block = event
        self._item = self._plain = None
        if event.kind == "tool_use":
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
            self._plain = item.plain

    def _stop(self, event: BlockStop, out: list[bytes]) -> None:
        self._block = self._plain = None
        if self._item is not None and self._item.kind == "text":
            self._held = event
        elif self._item is not None:
            self._close(self._item, event, out)

    def _settle(self, out: list[bytes], *, cut: bool = False) -> None:
        """Ends the message that waits for it."""
        stop, self._held = self._held, None
        if stop is not None and self._item is not None:
            self._close(self._item, stop, out, cut=cut)

    def _end(self, event: TurnEvent, out: list[bytes]) -> None:
        if self._state.over:
            return
        failure = failure_of(event)
        if failure is not None:
            self._fail(failure, out)
        elif isinstance(event, Finish):
            self._finish(event, out)

    def _finish(self, event: Finish, out: list[bytes]) -> None:
        cut = self._state.cut_by(event)
        if self._block is not None:
            self._block = None
            if self._item is not None:
                self._close(self._item, BlockStop(0, complete=False), out, cut=True)
        self._settle(out, cut=cut)
        self._state.finish(event)
        self._last(out)

    def _fail(self, info: ErrorInfo, out: list[bytes]) -> None:
        if self._state.over:
            return
        self._break_off(out)
        self._state.fail(info)
        self._last(out)

    def _break_off(self, out: list[bytes]) -> None:
        self._settle(out)
        if self._item is not None:
            # What is only half there gets no end: agents that try again keep what has one.
            closed = self._item.close(BlockStop(0, complete=False), cut=True)
            if closed is not None:
                self._state.items.append(closed.item)
            self._item = self._plain = None

    def _last(self, out: list[bytes]) -> None:
        self._event(f"response.{self._state.status}", {"response": self._state.document()}, out)
        out.append(DONE)

    def _new(self, block: BlockStart) -> Item:
        return Item(block, self._state.reply, self._state.shape, len(self._state.items))

    def _announce(self, item: Item, out: list[bytes]) -> None:
        self._event("response.output_item.added", {"output_index": item.index, "item": item.added()}, out)
        self._head = _head(item, item.kind)
        self._tail = _NO_LOGPROBS if item.kind == "text" else _END
        if item.is_call:
            return
        self._event("response.content_part.added", {**_place(item), "content_index": 0, "part": item.part()}, out)
        if item.kind == "reasoning" and self._state.shape.summary:
            self._head = _head(item, "summary")
            part = {"type": "summary_text", "text": ""}
            self._event(
                "response.reasoning_summary_part.added", {**_place(item), "summary_index": 0, "part": part}, out
            )

    def _show(self, item: Item, text: str, logprobs: Sequence[TokenLogprob], out: list[bytes]) -> None:
        tail = self._tail
        if logprobs and item.kind == "text" and self._state.shape.logprobs:
            tail = b',"logprobs":' + _encode(item.logprobs[-len(logprobs) :]) + _END
        out.append(b'%b%d,"delta":%b%b' % (self._head, self._sequence, _encode(text), tail))
        self._sequence += 1

    def _close(self, item: Item, stop: BlockStop, out: list[bytes], *, cut: bool = False) -> None:
        self._item = self._plain = None
        buffered = item.kind in BUFFERED
        rest = item.rest(stop.complete and not cut)
        if rest and not buffered:
            self._show(item, rest, (), out)
        closed = item.close(stop, cut=cut)
        if closed is None:
            return
        self._state.items.append(closed.item)
        if not closed.told:
            return
        if buffered:
            self._announce_whole(item, closed, out)
        self._ends(item, out)
        self._event("response.output_item.done", {"output_index": item.index, "item": closed.item}, out)
        self._dispatch(item, closed, out)

    def _announce_whole(self, item: Item, closed: Closed, out: list[bytes]) -> None:
        """An item that could not be shown before it was whole."""
        if item.kind in BUFFERED:
            self._event("response.output_item.added", {"output_index": item.index, "item": closed.item}, out)
            return
        self._announce(item, out)
        self._show(item, item.text, (), out)

    def _ends(self, item: Item, out: list[bytes]) -> None:
        """The events that repeat the whole of what was shown."""
        place = _place(item)
        if item.kind == "function":
            name = item.named.name if item.named is not None else ""
            self._event("response.function_call_arguments.done", {**place, "arguments": item.text, "name": name}, out)
        elif item.kind == "custom":
            self._event("response.custom_tool_call_input.done", {**place, "input": item.text}, out)
        elif item.kind == "text":
            part = item.part()
            done = {"text": part["text"], "logprobs": part["logprobs"]}
            self._event("response.output_text.done", {**place, "content_index": 0, **done}, out)
            self._event("response.content_part.done", {**place, "content_index": 0, "part": part}, out)
        elif item.kind == "reasoning":
            text = Raw(_encode(item.text))
            part = {"type": "reasoning_text", "text": text}
            self._event("response.reasoning_text.done", {**place, "content_index": 0, "text": text}, out)
            self._event("response.content_part.done", {**place, "content_index": 0, "part": part}, out)
            if self._state.shape.summary:
                part = {"type": "summary_text", "text": text}
                self._event("response.reasoning_summary_text.done", {**place, "summary_index": 0, "text": text}, out)
                self._event("response.reasoning_summary_part.done", {**place, "summary_index": 0, "part": part}, out)

    def _dispatch(self, item: Item, closed: Closed, out: list[bytes]) -> None:
        """What an operator or a client can ask for beside the API: no SDK but one in TypeScript minds the event."""
        reply = self._state.reply
        if item.is_call:
            name = "tool_call_dispatch" if reply.dispatch and closed.runs else None
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


def payloads(rendered: bytes) -> list[bytes]:
    """The JSON of every event in what a `ResponsesStream` rendered: WebSocket frames, or a stored stream. Of a whole
    stream, the event with `sequence_number` n is at place n: dispatch events and `[DONE]` are left out."""
    frames = rendered.split(b"\n\n")
    return [frame.partition(b"\ndata: ")[2] for frame in frames if frame.startswith(b"event: response.")]


def frame(payload: bytes) -> bytes:
    """One of the `payloads` as it stood in the stream."""
    start = len(b'{"type":"')
    return b"event: %b\ndata: %b\n\n" % (payload[start : payload.index(b'"', start)], payload)


def _head(item: Item, kind: str) -> bytes:
    name, index = _DELTAS[kind]
    return _DELTA % (name, name, item.id.encode(), item.index, index)


def _place(item: Item) -> dict[str, Any]:
    return {"item_id": item.id, "output_index": item.index}
