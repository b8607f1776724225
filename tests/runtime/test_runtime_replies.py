"""A reply that cannot be read counts as one that was lost."""

import msgspec
import pytest

from schemas.errors import TimedOut
from schemas.frames import GenerateReply
from services.runtime.replies import decode_reply
from tests.kit.every import for_each

REPLY = msgspec.json.Decoder(GenerateReply)


def test_reply_is_decoded() -> None:
    reply = GenerateReply("worker-1")
    assert decode_reply(REPLY, msgspec.json.encode(reply)) == reply


@for_each([b"", b"\xff", b"[]", b"null", b'{"error": 7}', b"[" * 100_000, b"\x80\x81"])
def test_unreadable_reply_is_a_lost_one(reply: bytes) -> None:
    with pytest.raises(TimedOut):
        decode_reply(REPLY, reply)
