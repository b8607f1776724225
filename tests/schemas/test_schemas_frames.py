"""What is on the wire stays readable for older and newer processes."""

import sys

import msgspec
import pytest
from msgspec import Raw

from schemas.conversation import Conversation, Message, Sampling, Text
from schemas.errors import (
    INTERNAL,
    OUT_OF_MEMORY,
    ErrorInfo,
    ErrorKind,
    TurnwireError,
    raised,
    unexpected,
)
from schemas.events import BlockStart, Delta, blocks_of
from schemas.frames import (
    ABSENT,
    EventEntry,
    EventFrame,
    GenerateRequest,
    TokenEntry,
    TokenFrame,
    TurnRequest,
    decode_generate,
    encode_generate,
    pack_ids,
    unpack_ids,
)
from tests.kit.events import text
from tests.kit.every import Cases, for_each


def test_ids_are_little_endian_and_broken_ones_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_ids([1, 258])
    assert packed == b"\x01\0\0\0\x02\x01\0\0"
    with pytest.raises(ValueError):
        unpack_ids(b"abc")
    other = {"little": "big", "big": "little"}[sys.byteorder]
    monkeypatch.setattr(sys, "byteorder", other)
    assert pack_ids([1, 258]) == b"\0\0\0\x01\0\0\x01\x02", "swapped where it is another"


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


def test_a_turn_request_round_trips_and_fields_of_a_newer_version_are_skipped() -> None:
    conversation = Conversation("m", [Message("user", [Text("hi")])])
    request = TurnRequest("t", "f", conversation, resume=pack_ids([3]))
    assert msgspec.json.decode(msgspec.json.encode(request), type=TurnRequest) == request
    entry = b'{"turn":"t","attempt":1,"at":0,"ids":[1],"new":{}}'
    data = b'{"sender":"w","seq":1,"colour":"red","entries":[%s]}' % entry
    assert msgspec.json.decode(data, type=TokenFrame).entries[0].ids == [1]


@for_each(list(ErrorKind))
def test_every_kind_of_error_has_its_exception(kind: ErrorKind) -> None:
    info = ErrorInfo(kind, "why", param="messages.0", retry_after_s=1.5)
    error = raised(info)
    assert isinstance(error, TurnwireError)
    assert error.kind == kind
    assert error.info == info
    assert str(error) == "why"


def test_unexpected_error_names_a_lack_of_memory() -> None:
    assert unexpected(MemoryError()) is OUT_OF_MEMORY
    assert unexpected(KeyError("x")) is INTERNAL


def test_blocks_have_their_start_text_and_end() -> None:
    first, last = text(0, ("a", "b")), text(1, "cut")[:-1]
    blocks = [(start.block, said, stop) for start, said, stop in blocks_of([*first, *last])]
    assert blocks == [(0, "ab", first[-1]), (1, "cut", None)]


@pytest.mark.parametrize("ids", [[], [1], [0, 10, 0x7B, 0xFFFFFFFF], list(range(60_000))])
def test_prompt_follows_its_request(ids: list[int], cases: Cases) -> None:
    context = Raw(msgspec.json.encode({"text": "a\0b\n", "n": [1]}))
    sampling = Sampling(max_tokens=3, stop=["\0"])
    request = GenerateRequest(
        "t\0", 2, "m", pack_ids(ids), "p", "f", sampling, [7], context, b"\0\1", cache_salt="s\0"
    )
    data = encode_generate(request)
    assert decode_generate(data) == request
    assert unpack_ids(decode_generate(data).prompt) == ids
    assert decode_generate(msgspec.json.encode(request)) == request, "JSON as a whole"
    assert data.endswith(b"\0" + pack_ids(ids))
    for broken in (data[1:], data[:20], b"\0" + data, b""):
        with cases.case(length=len(broken)), pytest.raises(msgspec.DecodeError):
            decode_generate(broken)
