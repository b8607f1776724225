"""Encodes the events of a stream, and splits a stream into its events."""

from collections.abc import Sequence
from typing import get_args

import msgspec

from schemas.events import TurnEvent
from services.frontend.apis.responses import wire_events
from services.frontend.apis.shared.openai.chunks import DONE
from services.frontend.apis.shared.turn_renderer import Plain, event_names, only_text

KEEPALIVE = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
"""An event, because comments do not reset Codex' idle timeout. The TypeScript helper accepts no
other type without content; openai-python and the AI SDK skip it."""
_NAMES = event_names(wire_events.Event)
_LAST = get_args(wire_events.LastResponseEvent)
_encode = msgspec.json.Encoder().encode


class EventEncoder:
    """Numbers and encodes the events of one stream."""

    def __init__(self) -> None:
        self.number = 0
        """The `sequence_number` of the next event."""

    def encode(self, events: Sequence[wire_events.Event]) -> bytes:
        """The bytes of the next events; `[DONE]` follows the last event of a stream."""
        for event in events:
            if not isinstance(event, wire_events.ItemDispatch):
                event.sequence_number = self.number
                self.number += 1
        frames = [_frame(event) for event in events]
        if events and isinstance(events[-1], _LAST):
            frames.append(DONE)
        return b"".join(frames)

    def encode_plain(self, events: Sequence[TurnEvent], plain: Plain, pieces: list[str]) -> bytes:
        """Does what `OpenItem.add` and `encode` do with text, in a quarter of the time: appends it
        to `pieces`, and returns its one delta; b"" if there are other events."""
        text = only_text(events)
        if not text:
            return b""
        pieces.append(text)
        number = self.number
        self.number = number + 1
        return b'%b%d,"delta":%b%b' % (plain[0], number, _encode(text), plain[1])


def plain_delta(delta: wire_events.DeltaEvent) -> Plain:
    """The bytes around number and text of every delta like this one, which has neither."""
    before, _, after = _frame(delta).partition(b'0,"delta":""')
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


def _frame(event: wire_events.Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (_NAMES[type(event)], _encode(event))
