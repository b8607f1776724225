"""The writer of one event stream: bytes of a turn go out as they come, a silent stream gets its keep-alive, and a
client that does not read is given up alone.

`write` is called from the bus callback. As long as the client keeps up, it hands the bytes to the transport at once,
framed here: waking the handler's task to go through `StreamResponse.write` costs 9.2 µs an event, this 5.4 (64 streams,
uvloop). When the transport is full, bytes wait here and `run`, in the handler's task, sends them as the client reads.
Time is looked at by one timer per stream, not per write.
"""

import asyncio
import socket
from collections.abc import Callable

from aiohttp import web
from msgspec import Struct

SLICE_BYTES = 64 * 1024
HIGH_WATER_BYTES = 32 * 1024
"""What the transport may hold: more than one batch of events, little enough that slowness is noticed."""
UNSENT_BYTES = 16 * 1024
"""What the kernel may hold unsent. Its own choice is megabytes: minutes of a turn."""
_LOOKS = 4
"""How often a stalled stream is looked at within the time allowed."""


class StreamLimits(Struct, frozen=True):
    """How long and how much a stream may wait."""

    ping_interval_s: float
    slow_reader_timeout_s: float
    max_buffered_bytes: int


class SseWriter:
    """Writes one stream. `response` is prepared, and chunked unless the client's HTTP is too old for it."""

    def __init__(
        self,
        request: web.Request,
        response: web.StreamResponse,
        limits: StreamLimits,
        keepalive: bytes,
        *,
        on_slow: Callable[[], None],
    ) -> None:
        self._request = request
        self._response = response
        self._chunked = response.chunked
        self._limits = limits
        self._keepalive = keepalive
        self._on_slow = on_slow
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._backlog: list[bytes] = []
        self._backlog_bytes = 0
        self._closed = False
        self._given_up = False
        self._last = self._loop.time()
        self._stalled_since: float | None = None
        self._unread = 0
        self._timer: asyncio.TimerHandle | None = None
        keep_buffers_small(request.transport)

    def write(self, data: bytes) -> None:
        """Sends bytes, or puts them down while the client is behind. One that is too far behind is given up."""
        if self._closed or not data:
            return
        if self._stalled_since is None:
            self._hand_over(data)
            return
        self._backlog.append(data)
        self._backlog_bytes += len(data)
        if self._backlog_bytes > self._limits.max_buffered_bytes:
            self._give_up()

    def close(self) -> None:
        """No more bytes will come; `run` returns when those that are there are sent."""
        self._closed = True
        self._wake.set()

    async def run(self) -> None:
        """Serves the stream until `close`, then ends the response. Raises ConnectionError where the client has gone."""
        self._look_later()
        try:
            while self._stalled_since is not None or not self._closed:
                if self._stalled_since is not None:
                    await self._catch_up()
                else:
                    self._wake.clear()
                    await self._wake.wait()
            self._stalled_since = self._loop.time()
            try:
                await self._response.write_eof()
            except ConnectionError:
                if self._given_up:
                    raise
                # All is sent: Codex closes at its last event, without waiting for the end.
        finally:
            self._closed = True
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
            for at in range(0, len(waiting), SLICE_BYTES):
                piece = waiting[at : at + SLICE_BYTES]
                self._hand_over(piece)
                self._backlog_bytes -= len(piece)
                if self._stalled_since is not None:
                    await self._request.writer.drain()

    def _hand_over(self, data: bytes) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return  # the handler is being cancelled
        self._last = self._loop.time()
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        held = transport.get_write_buffer_size()
        if held > HIGH_WATER_BYTES:
            self._stalled_since = self._last
            self._unread = held
            self._wake.set()

    def _look_later(self) -> None:
        now = self._loop.time()
        step = now + min(self._limits.ping_interval_s, self._limits.slow_reader_timeout_s / _LOOKS)
        due = self._last + self._limits.ping_interval_s
        self._timer = self._loop.call_at(min(step, due) if due > now else step, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if self._stalled_since is not None:
            transport = self._request.transport
            unread = transport.get_write_buffer_size() if transport is not None else 0
            if unread < self._unread:
                self._stalled_since = now
            self._unread = unread
            if now - self._stalled_since >= self._limits.slow_reader_timeout_s:
                self._give_up()
                return
        elif now - self._last >= self._limits.ping_interval_s:
            self.write(self._keepalive)
        self._look_later()

    def _give_up(self) -> None:
        self._given_up = True
        self._backlog.clear()
        self.close()
        self._on_slow()
        if self._request.transport is not None:
            self._request.transport.abort()


def keep_buffers_small(transport: asyncio.Transport | None) -> None:
    """Has a connection hold little that its client has not read, so that a client that does not read is noticed."""
    if transport is None:
        return
    transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
    sock = transport.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        except OSError:
            pass  # not a TCP socket
