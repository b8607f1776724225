"""Decodes request bodies into typed Structs. All defects of the JSON are reported as `Invalid`."""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from schemas.errors import Invalid

T = TypeVar("T")

_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})(?:\\u([dD][c-fC-F][0-9a-fA-F]{2}))?|.)", re.DOTALL)


def decode_body(decode: Callable[[bytes], T], body: bytes, explain: Callable[[bytes, str], Invalid]) -> T:
    """Decodes a body. Raises Invalid; `explain(body, message)` makes the error of a failed validation."""
    try:
        if not body.isascii():
            body.decode()  # raw parts of the body are decoded later, where this error is not expected
        return decode_mended(decode, body)
    except msgspec.ValidationError as error:
        raise explain(mended(body), str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"The request body is not valid JSON: {error}") from None
    except RecursionError:
        raise Invalid("The request body is nested too deeply.") from None


def decode_mended(decode: Callable[[bytes], T], body: bytes) -> T:
    """Decodes a body, with `mend_surrogates` if necessary. Raises as `decode`."""
    try:
        return decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # Only now: msgspec refuses half a pair wherever it is, and searching 240 KB takes 290 us, longer than decoding.
        whole = mended(body)
        if whole is body:
            raise
        return decode(whole)


def mended(body: bytes) -> bytes:
    """The body after `mend_surrogates`, if it may contain surrogates."""
    return mend_surrogates(body) if b"\\ud" in body or b"\\uD" in body else body


def mend_surrogates(body: bytes) -> bytes:
    r"""The same JSON with every half of a `\ud83d\ude00` pair that stands alone replaced by U+FFFD.

    Agents cut tool results at a number of UTF-16 units, even inside an emoji. The history then contains half a pair for
    ever, and a server that refuses it ends that conversation.
    """
    return _ESCAPE.sub(_mended, body)


def _mended(match: re.Match[bytes]) -> bytes:
    first, second = match.group(1), match.group(2)
    if first is None:
        return match.group()
    high = 0xD800 <= int(first, 16) <= 0xDBFF
    low = 0xDC00 <= int(first, 16) <= 0xDFFF
    if high:
        return match.group() if second else b"\\ufffd"
    return (b"\\ufffd" if low else b"\\u" + first) + (b"\\ufffd" if second else b"")
