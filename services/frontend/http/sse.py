"""Writes event streams: sends bytes at once, sends keep-alives on a silent stream, and disconnects
a client that stops reading.

`SseWriter.write` is called from callbacks of the loop. While the client keeps up, it writes chunks
to the transport directly, which costs 5.4 us an event; waking the handler's task to await
`StreamResponse.write` costs 9.2 (64 streams, uvloop). When the transport is full, bytes wait here,
and `run`, in the handler's task, sends them as the client reads. One timer per stream, not per
write, checks for silence and stalls.
"""

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from aiohttp import HttpVersion11, web
from typing_extensions import override

from services.runtime.config.frontend import FrontendConfig

SLICE_BYTES = 64 * 1024
HIGH_WATER_BYTES = 32 * 1024
"""Limit of the transport's buffer: more than one batch of events, but small enough to notice a slow
client."""
UNSENT_BYTES = 16 * 1024
"""Limit of unsent bytes in the kernel. Its default is megabytes, which is minutes of a turn."""
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
_LAST_CHUNK = b"0\r\n\r\n"
_CHECKS = 4
"""Number of checks of a stalled stream within the timeout."""


class EventStream(web.Response):
    """The response of a stream. aiohttp sends the head, with the first bytes; `SseWriter` writes
    the rest and the end.

    It is a `Response`, because a `StreamResponse` writes its head separately: on uvloop, each write
    is a system call.
    """

    def __init__(self, request: web.Request) -> None:
        # A client of HTTP/1.0 reads until the connection is closed. A body of unknown length has no
        # Content-Length.
        framed = request.version >= HttpVersion11
        super().__init__(headers=STREAM_HEADERS, body=None if framed else _unknown_length())
        if framed:
            self.enable_chunked_encoding()

    def begin(self, request: web.Request, first: bytes) -> None:
        """Sends the head and the first bytes. Raises errors of `prepare`, and RuntimeError if
        anything in it waits."""
        coroutine = self._begin(request, first)
        try:
            coroutine.send(None)  # callbacks cannot await
        except StopIteration:
            return
        coroutine.close()
        raise RuntimeError("a handler of on_response_prepare waited")

    async def _begin(self, request: web.Request, first: bytes) -> None:
        await self.prepare(request)
        await self.write(first)

    async def write_eof(self, data: bytes = b"") -> None:
        """Does nothing, because `SseWriter` has written the end."""


async def _unknown_length() -> AsyncIterator[bytes]:
    yield b""  # pragma: no cover - `SseWriter` writes the body


class _ClientTransport:
    """The connection of a client, and whether the client keeps up."""

    def __init__(self, transport: asyncio.Transport | None) -> None:
        self.is_full = False
        """The transport has more bytes than `HIGH_WATER_BYTES`, as far as is known."""
        self.wake = asyncio.Event()
        """Wakes the handler's task: the transport is full, or the stream was closed."""
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._last_read = 0.0
        """When the client read something, or when the transport became full."""
        self._unread = 0

    def write(self, framed: bytes) -> None:
        """Writes bytes to the transport, and notes if it is full then."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return  # the handler is being cancelled
        transport.write(framed)
        unread = transport.get_write_buffer_size()
        if unread > HIGH_WATER_BYTES:
            self._unread = unread
            self.expect_reading()

    def expect_reading(self) -> None:
        """Measures `idle_s` from now on."""
        self.is_full = True
        self._last_read = self._loop.time()
        self.wake.set()

    def idle_s(self, now: float) -> float:
        """Returns for how long the client has read nothing of what waits for it."""
        unread = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if unread < self._unread:
            self._last_read = now
        self._unread = unread
        return now - self._last_read

    def abort(self) -> None:
        """Closes the connection at once."""
        if self._transport is not None:
            self._transport.abort()


class _Backlog:
    """Bytes that wait until the client reads."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes that are not sent."""
        self._pieces: list[bytes] = []

    def add(self, data: bytes) -> None:
        self._pieces.append(data)
        self.size += len(data)

    def remove_all(self) -> bytes:
        """Returns all bytes. The caller reduces `size` when they are sent."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


class StreamWriter(ABC):
    """Sends the bytes of a rendered stream. Its methods, except `run`, do not block."""

    closed: bool
    """No more bytes are accepted."""

    @abstractmethod
    def begin(self, data: bytes) -> None:
        """Sends the first bytes."""

    @abstractmethod
    def write(self, data: bytes, now: float | None = None) -> None:
        """Sends the next bytes. `now`: the loop's time, if the caller has it."""

    @abstractmethod
    def close(self, last: bytes = b"") -> None:
        """Ends the stream with these bytes. Idempotent."""

    @abstractmethod
    def abort(self) -> None:
        """Breaks the stream off, so that its reader does not take it for complete."""

    @abstractmethod
    async def run(self) -> None:
        """Returns when the stream is closed and all bytes are sent."""


class SseWriter(StreamWriter):
    """Writes one stream."""

    def __init__(
        self,
        request: web.Request,
        response: EventStream,
        config: FrontendConfig,
        keepalive: bytes,
        *,
        on_slow: Callable[[], None],
    ) -> None:
        self.closed = False
        self.response = response
        self._request = request
        self._chunked = response.chunked
        self._config = config
        self._keepalive = keepalive
        self._on_slow = on_slow
        self._loop = asyncio.get_running_loop()
        self._client = _ClientTransport(request.transport)
        self._backlog = _Backlog()
        self._caught_up = asyncio.Event()
        """Wakes `write_all`: the client has read the backlog, or the stream was closed."""
        self._ended = False
        """The end of the body is written."""
        self._is_abandoned = False
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    @override
    def begin(self, data: bytes) -> None:
        """Sends the response's head and the first bytes."""
        self.response.begin(self._request, data[:HIGH_WATER_BYTES])
        if len(data) > HIGH_WATER_BYTES:
            self.write(data[HIGH_WATER_BYTES:])

    @override
    def write(self, data: bytes, now: float | None = None) -> None:
        """Sends bytes, or keeps them if the client reads too slowly. Disconnects the client if it
        keeps too many."""
        if self.closed or not data:
            return
        self._last = self._loop.time() if now is None else now
        if self._client.is_full or len(data) > SLICE_BYTES:
            self._write_slices(data)
        elif self._chunked:
            self._client.write(b"%x\r\n%b\r\n" % (len(data), data))  # `_chunk`, without the call
        else:
            self._client.write(data)

    async def write_all(self, data: bytes) -> None:
        """Sends bytes as fast as the client reads, however many. Returns when all are written, or
        when the stream is closed. One caller at a time, while `run` runs."""
        for start in range(0, len(data), SLICE_BYTES):
            while self._client.is_full and not self.closed:
                self._caught_up.clear()
                await self._caught_up.wait()
            if self.closed:
                return
            self.write(data[start : start + SLICE_BYTES])

    @override
    def close(self, last: bytes = b"") -> None:
        """Ends the stream with these bytes. `run` returns when all are sent."""
        if len(last) > SLICE_BYTES:
            self.write(last)
            last = b""
        if self.closed:
            return
        self.closed = True
        if not self._client.is_full:
            self._end(last)
        elif last:
            self._keep(last)
        self._client.wake.set()

    @override
    def abort(self) -> None:
        """Aborts the connection."""
        self.closed = True
        self._ended = True
        self._client.is_full = False
        self._client.wake.set()
        self._client.abort()

    @override
    async def run(self) -> None:
        """Serves the stream until `close`, then ends the response. Raises ConnectionError if the
        client disconnects."""
        client = self._client
        self._schedule_check()
        try:
            while client.is_full or not self.closed:
                if client.is_full:
                    await self._catch_up()
                else:
                    client.wake.clear()
                    await client.wake.wait()
            if not self._ended:
                self._end(b"")
            client.expect_reading()  # of the last bytes, too
            with suppress(ConnectionError):
                # Codex disconnects at the last event, without waiting for the end.
                await self._request.writer.drain()
            if self._is_abandoned:
                raise ConnectionResetError("the client does not read")
        finally:
            self.closed = True
            self._caught_up.set()
            if self._timer is not None:
                self._timer.cancel()

    async def _catch_up(self) -> None:
        """Sends the backlog as fast as the client reads."""
        client = self._client
        while True:
            await self._request.writer.drain()
            client.is_full = False
            waiting = self._backlog.remove_all()
            if not waiting:
                self._caught_up.set()
                return
            self._last = self._loop.time()
            for start in range(0, len(waiting), SLICE_BYTES):
                piece = waiting[start : start + SLICE_BYTES]
                client.write(self._framed(piece))
                self._backlog.size -= len(piece)
                if client.is_full:
                    await self._request.writer.drain()

    def _write_slices(self, data: bytes) -> None:
        """Sends pieces until the transport is full, and keeps the rest."""
        for start in range(0, len(data), SLICE_BYTES):
            if self._client.is_full:
                self._keep(data[start:])
                return
            self._client.write(self._framed(data[start : start + SLICE_BYTES]))

    def _end(self, last: bytes) -> None:
        self._ended = True
        framed = self._framed(last) if last else b""
        if self._chunked:
            framed += _LAST_CHUNK
        if framed:
            self._client.write(framed)

    def _framed(self, data: bytes) -> bytes:
        return _chunk(data) if self._chunked else data

    def _keep(self, data: bytes) -> None:
        self._backlog.add(data)
        if self._backlog.size > self._config.max_buffered_bytes:
            self._give_up()

    def _schedule_check(self) -> None:
        config = self._config
        now = self._loop.time()
        next_check = now + min(config.ping_interval_s, config.slow_reader_timeout_s / _CHECKS)
        ping_at = self._last + config.ping_interval_s
        if ping_at > now:
            next_check = min(next_check, ping_at)
        self._timer = self._loop.call_at(next_check, self._check)

    def _check(self) -> None:
        now = self._loop.time()
        if self._client.is_full:
            if self._client.idle_s(now) >= self._config.slow_reader_timeout_s:
                self._give_up()
                return
        elif now >= self._last + self._config.ping_interval_s:  # as in `_schedule_check`
            self.write(self._keepalive)
        self._schedule_check()

    def _give_up(self) -> None:
        """Disconnects a client that does not read."""
        self._is_abandoned = True
        self._backlog.remove_all()
        self.closed = True
        self._client.wake.set()
        self._on_slow()
        self._client.abort()


def _chunk(data: bytes) -> bytes:
    """Frames one chunk of HTTP's chunked coding (RFC 9112, 7.1); `data` must not be empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def keep_buffers_small(transport: asyncio.Transport) -> None:
    """Limits the buffers of a new connection, so that a client that stops reading is noticed."""
    transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
    sock = transport.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with suppress(OSError):  # not a TCP socket
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
