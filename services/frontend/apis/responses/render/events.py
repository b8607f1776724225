"""Writes the events of a stream, and splits a stream into its events."""

from typing import Any, Literal

import msgspec
from msgspec import Raw

from services.frontend.turns.interfaces import AnswerInfo

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
"""An event, because comments do not reset Codex' idle timeout. The TypeScript helper accepts no
other type without content; openai-python and the AI SDK skip it."""
_encode = msgspec.json.Encoder().encode


class EventWriter:
    """Writes the events of one stream."""

    def __init__(self, answer: AnswerInfo) -> None:
        self._dispatched = {
            "tool_call_dispatch": answer.dispatch,
            "reasoning_dispatch": answer.dispatch_reasoning,
        }
        self.number = 0
        """The `sequence_number` of the next event."""
        self._out: list[bytes] = []

    def event(self, name: str, fields: dict[str, Any]) -> None:
        """Writes the event `response.{name}`."""
        event = name.encode()
        self._out.append(
            b'event: response.%b\ndata: {"type":"response.%b","sequence_number":%d,%b\n\n'
            % (event, event, self.number, _encode(fields)[1:])
        )
        self.number += 1

    def item(self, step: Literal["added", "done"], index: int, item: Raw) -> None:
        """Writes that an item was added or is done."""
        self.event(f"output_item.{step}", {"output_index": index, "item": item})

    def delta(self, head: bytes, text: str, tail: bytes) -> None:
        """Writes a piece of an item; `head` and `tail`: the bytes around its number and text, from
        the item."""
        self._out.append(b'%b%d,"delta":%b%b' % (head, self.number, _encode(text), tail))
        self.number += 1

    def dispatch(self, name: str, index: int, item: Raw) -> None:
        """Writes a finished item again, for operators and clients that requested it. The event has
        no number."""
        if self._dispatched[name]:
            data = _encode({"type": name, "output_index": index, "item": item})
            self._out.append(b"event: %b\ndata: %b\n\n" % (name.encode(), data))

    def end(self) -> None:
        """Writes the end of the stream."""
        self._out.append(DONE)

    def take(self) -> bytes:
        """Returns the events since the last call."""
        data = b"".join(self._out)
        self._out.clear()
        return data


def delta_head(event: str, id: str, index: int, place: str = "") -> bytes:
    """The beginning of a delta event, up to its number. `place`: of the text in the item."""
    members = f'"type":"{event}","item_id":"{id}","output_index":{index}{place}'
    return f'event: {event}\ndata: {{{members},"sequence_number":'.encode()


def payloads(rendered: bytes) -> list[bytes]:
    """The JSON of every event in a rendered stream, for WebSocket frames or replays. Dispatch
    events and `[DONE]` are left out, so in a whole stream the event with `sequence_number` n is at
    index n."""
    frames = rendered.split(b"\n\n")
    return [
        frame.partition(b"\ndata: ")[2] for frame in frames if frame.startswith(b"event: response.")
    ]


def sse_frame(payload: bytes) -> bytes:
    """One of the `payloads` as an event of the stream."""
    start = len(b'{"type":"')
    return b"event: %b\ndata: %b\n\n" % (payload[start : payload.index(b'"', start)], payload)
