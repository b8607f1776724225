"""Encodes the events of a stream, and splits a stream into its events."""

from collections.abc import Sequence
from typing import TypeAlias, get_args

import msgspec

from services.frontend.apis.responses import wire

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
"""An event, because comments do not reset Codex' idle timeout. The TypeScript helper accepts no
other type without content; openai-python and the AI SDK skip it."""
Plain: TypeAlias = tuple[bytes, bytes]
"""The bytes of a delta before its number, and after its text."""
_NAMES: dict[type, bytes] = {
    kind: str(kind.__struct_config__.tag).encode() for kind in get_args(wire.Event)
}
_encode = msgspec.json.Encoder().encode


class EventEncoder:
    """Numbers and encodes the events of one stream."""

    def __init__(self) -> None:
        self.number = 0
        """The `sequence_number` of the next event."""

    def encode(self, events: Sequence[wire.Event]) -> bytes:
        """The bytes of the next events; `[DONE]` follows the last event of a stream."""
        return b"".join([self._frame(event) for event in events])

    def _frame(self, event: wire.Event) -> bytes:
        if not isinstance(event, wire.ToolCallDispatch | wire.ReasoningDispatch):
            event.sequence_number = self.number
            self.number += 1
        frame = b"event: %b\ndata: %b\n\n" % (_NAMES[type(event)], _encode(event))
        if isinstance(event, wire.LastEvent):
            return frame + DONE
        return frame

    def encode_plain(self, plain: Plain, text: str) -> bytes:
        """The bytes of one delta: those of its event, in half the time."""
        before, after = plain
        number = self.number
        self.number = number + 1
        return b'%b%d,"delta":%b%b' % (before, number, _encode(text), after)


def plain_delta(delta: wire.Delta) -> Plain:
    """The bytes around number and text of every delta like this one, which has neither."""
    frame = b"event: %b\ndata: %b\n\n" % (_NAMES[type(delta)], _encode(delta))
    before, _, after = frame.partition(b'0,"delta":""')
    return before, after


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
