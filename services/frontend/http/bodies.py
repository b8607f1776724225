"""Reads and decodes the body of a request. The size limit holds before and after decoding.

aiohttp decodes gzip and deflate, but not zstd or brotli everywhere. `app.make_runner` turns that
off, so that all encodings are handled and limited in one place.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import brotli
import zstandard
from aiohttp import StreamReader, web
from msgspec import Raw

from schemas.errors import Invalid, TooLarge
from services.frontend.http.request_context import REQUEST_CONTEXT
from services.runtime.config.base import MIB

THREAD_FROM_BYTES = 32 * 1024
"""Compressed bodies of this size or more are decoded in a thread."""
DECODED_ON_LOOP_BYTES = MIB
"""Smaller bodies that are larger than this after decoding are decoded in a thread, too."""
PARSE_IN_THREAD_FROM_BYTES = 512 * 1024
PARSE_IN_THREAD_FROM_OBJECTS = 2048
"""JSON with this size, or this number of objects, is parsed in a thread: 10,000 messages take 100
ms, which would stop all streams. A prompt of 100,000 tokens is smaller, and takes less time than
the thread would."""
UNCOUNTED_BYTES = MIB
"""Smaller bodies do not wait for the memory that larger ones hold."""
_PIECE_BYTES = MIB
_MAX_MEMBERS = 4096
"""Limit of a body's gzip members or zstd frames. Parallel compressors write one for each 64 KiB or
more."""
_SKIPPABLE_FRAME = b"\x2a\x4d\x18"
"""The second to fourth byte of a zstd frame without content."""
_RLE_BLOCK = 1
"""The type of a zstd block that repeats one byte."""
_CUT_OFF = "unexpected end of data"

_INVALID = "request_body_encoding_invalid"
_UNSUPPORTED = "request_body_encoding_unsupported"
_TOO_LARGE = "request_body_too_large_after_decoding"


@asynccontextmanager
async def reading_body(request: web.Request, limit: int) -> AsyncIterator[bytes]:
    """The decoded body. While it is entered, a body over `UNCOUNTED_BYTES` counts against its
    caller's limit; it waits until there is room.

    Raises TooLarge, Invalid for an unknown or broken encoding, HTTPRequestTimeout for a body that
    arrives too slowly.
    """
    length = request.content_length
    if length is not None and length > limit:
        raise TooLarge(f"The request body is {length} bytes; the limit is {limit}.")
    encoding = request.headers.get("content-encoding", "").strip().lower()
    is_plain = encoding in ("", "identity")
    held = request[REQUEST_CONTEXT].caller.held

    async with AsyncExitStack() as holding:
        body = await _receive(request, min(limit, UNCOUNTED_BYTES))
        counted = not request.content.at_eof()
        if counted:
            size = length if is_plain and length is not None else limit
            await holding.enter_async_context(held.wait_for(size))
            body += await _receive(request, limit)
        if len(body) > limit:
            raise TooLarge(f"The request body exceeds the limit of {limit} bytes.")
        if is_plain:
            yield body
            return
        decoded = _decode_small(body, encoding, limit)
        if decoded is None:
            if not counted:
                await holding.enter_async_context(held.wait_for(limit))
            decoded = await asyncio.to_thread(decode, body, encoding, limit)
        yield decoded


async def _receive(request: web.Request, until: int) -> bytes:
    """Reads until the end of the body, or beyond `until` bytes. `request.read` would copy the body
    twice more and keep it until the answer ends: minutes, for a stream."""
    try:
        async with asyncio.timeout(request[REQUEST_CONTEXT].body_timeout_s):
            return await read_until(request.content, until)
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason="The request body did not arrive in time") from None


async def read_until(content: StreamReader, until: int) -> bytes:
    """Reads until the end of a body, of a request or a response, or beyond `until` bytes."""
    pieces: list[bytes] = []
    size = 0
    while size <= until and (piece := await content.readany()):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _decode_small(body: bytes, encoding: str, limit: int) -> bytes | None:
    """Decodes a body that is small before and after decoding; None: it is not. Raises Invalid."""
    if len(body) >= THREAD_FROM_BYTES:
        return None
    try:
        return decode(body, encoding, min(limit, DECODED_ON_LOOP_BYTES))
    except TooLarge:
        return None


def is_large(*pieces: bytes | Raw) -> bool:
    """Whether this JSON takes too long to parse on the event loop. Braces in texts count, too."""
    if sum(len(memoryview(piece)) for piece in pieces) >= PARSE_IN_THREAD_FROM_BYTES:
        return True
    return sum(bytes(piece).count(b"{") for piece in pieces) >= PARSE_IN_THREAD_FROM_OBJECTS


def decode(body: bytes, encoding: str, limit: int) -> bytes:
    """Decodes a body. Stops at `limit` bytes, so that a decompression bomb costs no more.

    Raises Invalid for an unknown encoding or a malformed body, TooLarge beyond the limit.
    """
    decoder = _DECODERS.get(encoding)
    if decoder is None:
        supported = ", ".join(sorted(_DECODERS))
        raise Invalid(
            f"Content-Encoding '{encoding}' is not supported; use one of {supported}.",
            code=_UNSUPPORTED,
        )
    try:
        plain = decoder(body, limit + 1)
    except (zlib.error, zstandard.ZstdError, brotli.error, EOFError) as error:
        raise Invalid(f"The request body is not valid {encoding}: {error}", code=_INVALID) from None
    if len(plain) > limit:
        raise TooLarge(
            f"The request body exceeds the limit of {limit} bytes after decoding.", code=_TOO_LARGE
        )
    return plain


def _gzip(body: bytes, limit: int) -> bytes:
    # A body may consist of several members (RFC 1952, 2.2).
    plain = bytearray()
    start = 0
    for _ in range(_MAX_MEMBERS):
        member, start = _inflate(body, start, limit - len(plain), 16 + zlib.MAX_WBITS)
        plain += member
        if start == len(body) or len(plain) == limit:
            return bytes(plain)
    raise EOFError(f"more than {_MAX_MEMBERS} members")


def _deflate(body: bytes, limit: int) -> bytes:
    # The standard is zlib (RFC 9110, 8.4.1.2); some senders leave out its header.
    window_bits = zlib.MAX_WBITS if _has_zlib_header(body) else -zlib.MAX_WBITS
    plain, end = _inflate(body, 0, limit, window_bits)
    if end < len(body) and len(plain) < limit:
        raise EOFError("data after the end")
    return plain


def _has_zlib_header(body: bytes) -> bool:
    """Returns whether a body begins with the header of RFC 1950, 2.2."""
    if len(body) < 2:
        return False
    is_deflate = body[0] & 0x0F == 8
    return is_deflate and int.from_bytes(body[:2]) % 31 == 0


def _inflate(body: bytes, start: int, limit: int, window_bits: int) -> tuple[bytes, int]:
    """Decompresses from `start`, at most `limit` bytes. Returns them and the end of the compressed
    data."""
    inflater = zlib.decompressobj(window_bits)
    plain = bytearray()
    source = memoryview(body)
    read = start
    piece = b""
    while len(plain) < limit and not inflater.eof:
        if not piece:
            if read == len(body):
                raise EOFError(_CUT_OFF)
            # In pieces, because zlib copies all input after the end of a member: with many small
            # members, the whole rest each time.
            piece = bytes(source[read : read + THREAD_FROM_BYTES])
            read += len(piece)
        plain += inflater.decompress(piece, limit - len(plain))
        piece = inflater.unconsumed_tail
    return bytes(plain), read - len(inflater.unused_data)


def _zstd(body: bytes, limit: int) -> bytes:
    plain = bytearray()
    with zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True) as reader:
        while piece := reader.read(min(_PIECE_BYTES, limit - len(plain))):
            plain += piece
    if len(plain) < limit:
        _check_zstd_end(body)
    return bytes(plain)


def _check_zstd_end(body: bytes) -> None:
    """Raises EOFError or ZstdError if the last frame is cut off, which the reader does not report.
    Its frames are otherwise correct."""
    end = 0
    for _ in range(_MAX_MEMBERS):
        end = _zstd_frame_end(body, end)
        if end == len(body):
            return
    raise EOFError(f"more than {_MAX_MEMBERS} frames")


def _zstd_frame_end(body: bytes, start: int) -> int:
    """Returns where a frame ends (RFC 8878, 3.1). Raises EOFError or ZstdError beyond the end."""
    if body[start + 1 : start + 4] == _SKIPPABLE_FRAME:
        end = start + 8 + int.from_bytes(body[start + 4 : start + 8], "little")
    else:
        header = memoryview(body)[start:]
        end = _zstd_last_block_end(body, start + zstandard.frame_header_size(header))
        if zstandard.get_frame_parameters(header).has_checksum:
            end += 4
    if end > len(body):
        raise EOFError(_CUT_OFF)
    return end


def _zstd_last_block_end(body: bytes, start: int) -> int:
    """Returns where the last block of a frame ends. `start`: of its first block."""
    end = start
    is_last = False
    while not is_last:
        if end + 3 > len(body):
            raise EOFError(_CUT_OFF)
        header = int.from_bytes(body[end : end + 3], "little")
        is_last = bool(header & 1)
        is_one_byte = header >> 1 & 3 == _RLE_BLOCK
        end += 3 + (1 if is_one_byte else header >> 3)
    return end


def _brotli(body: bytes, limit: int) -> bytes:
    decoder = brotli.Decompressor()
    plain: bytes = decoder.process(body, output_buffer_limit=limit)
    while len(plain) < limit and not decoder.can_accept_more_data():
        plain += decoder.process(b"", output_buffer_limit=limit - len(plain))
    if len(plain) < limit and not decoder.is_finished():
        raise EOFError(_CUT_OFF)
    return plain


_DECODERS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "br": _brotli,
    "deflate": _deflate,
    "gzip": _gzip,
    "x-gzip": _gzip,
    "zstd": _zstd,
}
