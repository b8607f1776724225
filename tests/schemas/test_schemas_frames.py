"""Frames stay readable for older and newer processes."""

import msgspec

from schemas.events import BlockStart, Delta
from schemas.frames import EventEntry, EventFrame, TokenEntry
from schemas.requests import ABSENT


def test_events_are_readable_json() -> None:
    frame = EventFrame("p1", 7, [EventEntry("t1", 1, [BlockStart(0, "text"), Delta(0, 0, "hi")])])
    assert msgspec.json.encode(frame) == (
        b'{"sender":"p1","seq":7,"entries":[{"turn":"t1","attempt":1,"events":['
        b'{"type":"block_start","block":0,"kind":"text"},{"type":"delta","block":0,"offset":0,"text":"hi"}]}]}'
    )


def test_context_is_carried_unread_and_left_out_if_absent() -> None:
    entry = TokenEntry("t", 1, 0, [1], context=msgspec.Raw(b'{"family": "x",  "n":1.0}'))
    data = msgspec.json.encode([entry, TokenEntry("t", 1, 1, [2])])
    assert data == (
        b'[{"turn":"t","attempt":1,"at":0,"ids":[1],"context":{"family": "x",  "n":1.0}},'
        b'{"turn":"t","attempt":1,"at":1,"ids":[2]}]'
    )
    first, second = msgspec.json.decode(data, type=list[TokenEntry])
    assert first == entry
    assert second.context == ABSENT
