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
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from aiohttp import HttpVersion11, web

from services.runtime.config import FrontendConfig

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


class SseWriter:
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
        """No more bytes are accepted."""
        self.response = response
        self._request = request
        self._transport = request.transport
        self._chunked = response.chunked
        self._config = config
        self._keepalive = keepalive
        self._on_slow = on_slow
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._backlog: list[bytes] = []
        self._backlog_bytes = 0
        self._ended = False
        """The end of the body is written."""
        self._is_abandoned = False
        self._last = self._loop.time()
        self._stalled_since: float | None = None
        self._unread = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, data: bytes) -> None:
        """Sends the response's head and the first bytes."""
        self.response.begin(self._request, data[:HIGH_WATER_BYTES])
        self.write(data[HIGH_WATER_BYTES:])

    def write(self, data: bytes, now: float | None = None) -> None:
        """Sends bytes, or keeps them if the client reads too slowly. Disconnects the client if it
        keeps too many.

        `now`: the loop's time, if the caller has it.
        """
        if self.closed or not data:
            return
        self._last = self._loop.time() if now is None else now
        if self._stalled_since is None and (size := len(data)) <= SLICE_BYTES:
            self._send(
                b"%x\r\n%b\r\n" % (size, data) if self._chunked else data
            )  # `_chunk`, without the call
        else:
            self._write_slices(data)

    def close(self, last: bytes = b"") -> None:
        """Ends the stream with these bytes. `run` returns when all are sent."""
        if len(last) > SLICE_BYTES:
            self.write(last)
            last = b""
        if self.closed:
            return
        self.closed = True
        if self._stalled_since is None:
            self._end(last)
        elif last:
            self._keep(last)
        self._wake.set()

    def abort(self) -> None:
        """Aborts the connection, so that the client does not take the partial answer for complete."""
        self.closed = self._ended = True
        self._stalled_since = None
        self._wake.set()
        if self._transport is not None:
            self._transport.abort()

    async def run(self) -> None:
        """Serves the stream until `close`, then ends the response. Raises ConnectionError if the
        client disconnects."""
        self._schedule_check()
        try:
            while self._stalled_since is not None or not self.closed:
                if self._stalled_since is not None:
                    await self._catch_up()
                else:
                    self._wake.clear()
                    await self._wake.wait()
            if not self._ended:
                self._end(b"")
            self._stalled_since = self._loop.time()
            with suppress(
                ConnectionError
            ):  # Codex disconnects at the last event, without waiting for the end
                await self._request.writer.drain()
            if self._is_abandoned:
                raise ConnectionResetError("the client does not read")
        finally:
            self.closed = True
            if self._timer is not None:
                self._timer.cancel()

    async def _catch_up(self) -> None:
        """Sends the backlog as fast as the client reads."""
        while True:
            await self._request.writer.drain()
            self._stalled_since = None
            if not self._backlog:
                return
            waiting = b"".join(self._backlog)
            self._backlog.clear()
            self._last = self._loop.time()
            for at in range(0, len(waiting), SLICE_BYTES):
                piece = waiting[at : at + SLICE_BYTES]
                self._send(_chunk(piece) if self._chunked else piece)
                self._backlog_bytes -= len(piece)
                if self._stalled_since is not None:
                    await self._request.writer.drain()

    def _end(self, last: bytes) -> None:
        self._ended = True
        if self._chunked:
            last = _chunk(last) + _LAST_CHUNK if last else _LAST_CHUNK
        if last:
            self._send(last)

    def _send(self, framed: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return  # the handler is being cancelled
        transport.write(framed)
        unread = transport.get_write_buffer_size()
        if unread > HIGH_WATER_BYTES:
            self._stalled_since, self._unread = self._loop.time(), unread
            self._wake.set()

    def _write_slices(self, data: bytes) -> None:
        for at in range(0, len(data), SLICE_BYTES):
            if self._stalled_since is not None:
                self._keep(data[at:])
                return
            piece = data[at : at + SLICE_BYTES]
            self._send(_chunk(piece) if self._chunked else piece)

    def _keep(self, data: bytes) -> None:
        self._backlog.append(data)
        self._backlog_bytes += len(data)
        if self._backlog_bytes > self._config.max_buffered_bytes:
            self._give_up()

    def _schedule_check(self) -> None:
        now = self._loop.time()
        step = now + min(self._config.ping_interval_s, self._config.slow_reader_timeout_s / _CHECKS)
        due = self._last + self._config.ping_interval_s
        self._timer = self._loop.call_at(min(step, due) if due > now else step, self._check)

    def _check(self) -> None:
        now = self._loop.time()
        if self._stalled_since is not None:
            unread = self._transport.get_write_buffer_size() if self._transport is not None else 0
            if unread < self._unread:
                self._stalled_since = now
            self._unread = unread
            if now - self._stalled_since >= self._config.slow_reader_timeout_s:
                self._give_up()
                return
        elif now - self._last >= self._config.ping_interval_s:
            self.write(self._keepalive)
        self._schedule_check()

    def _give_up(self) -> None:
        self._is_abandoned = True
        self._backlog.clear()
        self.closed = True
        self._wake.set()
        self._on_slow()
        if self._transport is not None:
            self._transport.abort()


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
