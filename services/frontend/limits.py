"""A request's body, whole and decoded, and never more of it than allowed, before decoding or after.

aiohttp could decode gzip and deflate by itself, but not zstd or brotli everywhere; `app.make_runner` turns that off, so
that all encodings are handled, and bounded, in one place.
"""

import asyncio
import zlib
from collections.abc import Callable, Mapping
from typing import TypeVar

import brotli
import zstandard
from aiohttp import StreamReader, web

from schemas.errors import Invalid, TooLarge
from services.frontend.exchange import EXCHANGE

THREAD_FROM_BYTES = 32 * 1024
"""Compressed bodies from here on are decoded beside the event loop."""
UNDERSTAND_APART_BYTES = 512 * 1024
"""Bodies from here on are understood in a thread: 100,000 messages take 2 s, in which no stream would move. A prompt of
100,000 tokens is smaller, and takes less than the thread would."""
_PIECE_BYTES = 1024 * 1024
_MAX_MEMBERS = 4096
"""Of a gzip body; parallel compressors write one for each 64 KiB or more."""
T = TypeVar("T")

_INVALID = "request_body_encoding_invalid"
_UNSUPPORTED = "request_body_encoding_unsupported"
_TOO_LARGE = "request_body_too_large_after_decoding"


async def read_body(request: web.Request, limit: int) -> bytes:
    """The body as its sender wrote it.

    Raises TooLarge, Invalid for an encoding that is unknown or broken, HTTPRequestTimeout where it comes too slowly.
    """
    if request.content_length is not None and request.content_length > limit:
        raise TooLarge(f"The request body is {request.content_length} bytes; the limit is {limit}.")
    try:
        body = await _arrived(request, limit)
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason="The request body did not arrive in time") from None
    if len(body) > limit:
        raise TooLarge(f"The request body exceeds the limit of {limit} bytes.")
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return body
    if len(body) < THREAD_FROM_BYTES:
        return decode(body, encoding, limit)
    return await asyncio.to_thread(decode, body, encoding, limit)


async def _arrived(request: web.Request, limit: int) -> bytes:
    """The body as it came; of one that is longer than `limit`, no more than shows it.

    `request.read` copies it twice more and keeps it for as long as the answer takes: minutes, for a stream.
    """
    content = request.content
    if content.is_eof():
        return content.read_nowait()
    exchange = request.get(EXCHANGE)
    async with asyncio.timeout(exchange.body_timeout_s if exchange else None):
        if request.content_length is None:
            return await _pieces(content, limit)
        # All of it may wait in the reader, so that the handler is woken once and not for each piece of 64 KB.
        content.set_read_chunk_size(limit)
        request.protocol.resume_reading()
        if (failure := content.exception()) is not None:
            raise failure
        await content.wait_eof()
    return content.read_nowait()


async def _pieces(content: StreamReader, limit: int) -> bytes:
    content.set_read_chunk_size(limit)
    pieces: list[bytes] = []
    size = 0
    while size <= limit and (piece := await content.readany()):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


async def understand(read: Callable[[bytes, Mapping[str, str]], T], body: bytes, headers: Mapping[str, str]) -> T:
    """What a dialect makes of a body; in a thread where that takes long. Raises as `read`."""
    return await apart(len(body), lambda: read(body, headers))


async def apart(size_bytes: int, work: Callable[[], T]) -> T:
    """What `work` returns or raises; done in a thread where so much of a request is to be read."""
    return work() if size_bytes < UNDERSTAND_APART_BYTES else await asyncio.to_thread(work)


def decode(body: bytes, encoding: str, limit: int) -> bytes:
    """The body without its content coding. Decoding stops at `limit` bytes: a small bomb costs no more than that.

    Raises Invalid for an unknown encoding and a body that is not in it, TooLarge beyond the limit.
    """
    decoder = _DECODERS.get(encoding)
    if decoder is None:
        known = ", ".join(sorted(_DECODERS))
        raise Invalid(f"Content-Encoding '{encoding}' is not supported; use one of {known}.", code=_UNSUPPORTED)
    try:
        plain = decoder(body, limit + 1)
    except (zlib.error, zstandard.ZstdError, brotli.error, EOFError) as error:
        raise Invalid(f"The request body is not valid {encoding}: {error}", code=_INVALID) from None
    if len(plain) > limit:
        raise TooLarge(f"The request body exceeds the limit of {limit} bytes after decoding.", code=_TOO_LARGE)
    return plain


def _gzip(body: bytes, limit: int) -> bytes:
    # A body may be several members, one behind the other (RFC 1952, 2.2).
    plain, at = b"", 0
    for _ in range(_MAX_MEMBERS):
        member, at = _inflate(body, at, limit - len(plain), 16 + zlib.MAX_WBITS)
        plain += member
        if at == len(body) or len(plain) == limit:
            return plain
    raise EOFError(f"more than {_MAX_MEMBERS} members")


def _deflate(body: bytes, limit: int) -> bytes:
    # Officially zlib (RFC 9110, 8.4.1.2); some senders leave its header out.
    zlib_header = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    plain, end = _inflate(body, 0, limit, zlib.MAX_WBITS if zlib_header else -zlib.MAX_WBITS)
    if end < len(body) and len(plain) < limit:
        raise EOFError("data behind the end")
    return plain


def _inflate(body: bytes, at: int, limit: int, window_bits: int) -> tuple[bytes, int]:
    """What is compressed from `at` on, at most `limit` bytes of it, and where that ends."""
    inflater = zlib.decompressobj(window_bits)
    plain, source, piece = bytearray(), memoryview(body), b""
    while len(plain) < limit and not inflater.eof:
        if not piece:
            if at == len(body):
                raise EOFError("unexpected end of data")
            # In pieces: zlib copies what stands behind the end, and of many small members that would be all, each time.
            piece = bytes(source[at : at + THREAD_FROM_BYTES])
            at += len(piece)
        plain += inflater.decompress(piece, limit - len(plain))
        piece = inflater.unconsumed_tail
    return bytes(plain), at - len(inflater.unused_data)


def _zstd(body: bytes, limit: int) -> bytes:
    promised = zstandard.frame_content_size(body)
    plain = bytearray()
    with zstandard.ZstdDecompressor().stream_reader(body) as reader:
        while len(plain) < limit and (piece := reader.read(min(_PIECE_BYTES, limit - len(plain)))):
            plain += piece
    if len(plain) < min(limit, promised):
        raise EOFError("unexpected end of data")
    return bytes(plain)


def _brotli(body: bytes, limit: int) -> bytes:
    decoder = brotli.Decompressor()
    plain: bytes = decoder.process(body, output_buffer_limit=limit)
    while len(plain) < limit and not decoder.can_accept_more_data():
        plain += decoder.process(b"", output_buffer_limit=limit - len(plain))
    if len(plain) < limit and not decoder.is_finished():
        raise EOFError("unexpected end of data")
    return plain


_DECODERS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "br": _brotli,
    "deflate": _deflate,
    "gzip": _gzip,
    "x-gzip": _gzip,
    "zstd": _zstd,
}
