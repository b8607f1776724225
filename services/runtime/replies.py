"""Reads the replies of other processes."""

from typing import TypeVar

import msgspec

from schemas.errors import TimedOut

T = TypeVar("T")


def decode_reply(decoder: msgspec.json.Decoder[T], reply: bytes) -> T:
    """Decodes a reply. Raises TimedOut for one that cannot be read, as if it had been lost: any
    process may have sent it, where the bus has no users."""
    try:
        return decoder.decode(reply)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise TimedOut("the reply could not be read") from None
