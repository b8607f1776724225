"""Requests stay readable for older and newer processes."""

import msgspec
import pytest
from msgspec import Raw

from schemas.conversation import Conversation, Message, Sampling, Text
from schemas.frames import TokenFrame
from schemas.requests import GenerateRequest, TurnRequest, decode_generate, encode_generate
from schemas.token_ids import pack_ids, unpack_ids
from tests.kit.every import Cases


def test_a_turn_request_round_trips_and_fields_of_a_newer_version_are_skipped() -> None:
    conversation = Conversation("m", [Message("user", [Text("hi")])])
    request = TurnRequest("t", "f", conversation, resume=pack_ids([3]))
    assert msgspec.json.decode(msgspec.json.encode(request), type=TurnRequest) == request
    entry = b'{"turn":"t","attempt":1,"at":0,"ids":[1],"new":{}}'
    data = b'{"sender":"w","seq":1,"colour":"red","entries":[%s]}' % entry
    assert msgspec.json.decode(data, type=TokenFrame).entries[0].ids == [1]


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
