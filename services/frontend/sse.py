"""The writer of one event stream: bytes of a turn go out as they come, a silent stream gets its keep-alive, and a
client that does not read is given up alone.

`write` is called from a callback of the loop. As long as the client keeps up, it hands the bytes to the transport at
once, framed here: waking the handler's task to go through `StreamResponse.write` costs 9.2 us an event, this 5.4 (64
streams, uvloop). uvloop makes a system call of every write to a transport, which is most of what an event costs, so the
head goes with the first events and the end with the last. When the transport is full, bytes wait here and `run`, in the
handler's task, sends them as the client reads. Time is looked at by one timer per stream, not per write.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.helpers import rfc822_formatted_time
from msgspec import Struct

SLICE_BYTES = 64 * 1024
HIGH_WATER_BYTES = 32 * 1024
"""What the transport may hold: more than one batch of events, little enough that slowness is noticed."""
UNSENT_BYTES = 16 * 1024
"""What the kernel may hold unsent. Its own choice is megabytes: minutes of a turn."""
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
_LAST_CHUNK = b"0\r\n\r\n"
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_LOOKS = 4
"""How often a stalled stream is looked at within the time allowed."""


class StreamLimits(Struct, frozen=True):
    """How long and how much a stream may wait."""

    ping_interval_s: float
    slow_reader_timeout_s: float
    max_buffered_bytes: int


class EventStream(web.StreamResponse):
    """The response around a stream. Head, body and end are written by its `SseWriter`; aiohttp, which would make the
    head when the first bytes are to go, only hears that all is done.

    Raises what a handler of `on_response_prepare` raises, and ValueError for a header that cannot be written.
    """

    def __init__(self, request: web.Request) -> None:
        super().__init__(headers=STREAM_HEADERS)
        self.framed = request.version >= HttpVersion11
        """In chunks; a client of HTTP/1.0 reads until the connection is closed."""
        self._stays = self.framed and request.keep_alive
        if self.framed:
            self.headers["transfer-encoding"] = "chunked"
        for app in request.match_info.apps:
            _at_once(app.on_response_prepare.send(request, self))
        if self.framed and not self._stays:
            self.headers["connection"] = "close"
        major, minor = request.version
        lines = [f"HTTP/{major}.{minor} {self.status} {self.reason}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if any(map(_CONTROL.search, lines)):
            raise ValueError("a control character in a header")
        self._head = "\r\n".join(lines).encode()

    @property
    def keep_alive(self) -> bool:
        """Whether the connection serves another request behind this one."""
        return self._stays

    def head(self) -> bytes:
        """The status line and the headers, with the date of now."""
        return b"%b\r\nDate: %b\r\n\r\n" % (self._head, rfc822_formatted_time().encode())

    async def prepare(self, request: web.BaseRequest) -> None:
        """For aiohttp: nothing is left to be done."""

    async def write_eof(self, data: bytes = b"") -> None:
        """For aiohttp: nothing is left to be done."""


class SseWriter:
    """Writes one stream."""

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_chunked",
        "_ended",
        "_given_up",
        "_keepalive",
        "_last",
        "_limits",
        "_loop",
        "_on_slow",
        "_request",
        "_stalled_since",
        "_timer",
        "_transport",
        "_unread",
        "_wake",
        "closed",
        "response",
    )

    def __init__(
        self,
        request: web.Request,
        response: EventStream,
        limits: StreamLimits,
        keepalive: bytes,
        *,
        on_slow: Callable[[], None],
    ) -> None:
        self.closed = False
        """Nothing is taken any more."""
        self._request = request
        self.response = response
        self._transport = request.transport
        self._chunked = response.framed
        self._limits = limits
        self._keepalive = keepalive
        self._on_slow = on_slow
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._backlog: list[bytes] = []
        self._backlog_bytes = 0
        self._ended = False
        """The end is written."""
        self._given_up = False
        self._last = self._loop.time()
        self._stalled_since: float | None = None
        self._unread = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, data: bytes) -> None:
        """Sends the response's head and the first bytes, in one write."""
        self._last = self._loop.time()
        first = data[:SLICE_BYTES]
        opening = self.response.head() + (_chunk(first) if self._chunked and first else first)
        self._request.writer.output_size += len(opening)  # by which aiohttp knows that no other answer can be given
        self._hand_over(opening)
        if len(data) > SLICE_BYTES:
            self.write(data[SLICE_BYTES:])

    def write(self, data: bytes, now: float | None = None) -> None:
        """Sends bytes, or puts them down while the client is behind. One that is too far behind is given up.

        `now`: the loop's time, if the caller has it.
        """
        if self.closed or not data:
            return
        self._last = self._loop.time() if now is None else now
        if self._stalled_since is None and len(data) <= SLICE_BYTES:
            self._hand_over(_chunk(data) if self._chunked else data)
        else:
            self._write_slices(data)

    def close(self, last: bytes = b"") -> None:
        """No bytes will come behind these; `run` returns when those that are there are sent."""
        if len(last) > SLICE_BYTES:
            self.write(last)
            last = b""
        if self.closed:
            return
        self.closed = True
        if self._stalled_since is None:
            self._end(last)
        elif last:
            self._put_down(last)
        self._wake.set()

    async def run(self) -> None:
        """Serves the stream until `close`, then ends the response. Raises ConnectionError where the client has gone."""
        self._look_later()
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
            with suppress(ConnectionError):  # all is sent: Codex closes at its last event, without waiting for the end
                await self._request.writer.drain()
            if self._given_up:
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
                self._hand_over(_chunk(piece) if self._chunked else piece)
                self._backlog_bytes -= len(piece)
                if self._stalled_since is not None:
                    await self._request.writer.drain()

    def _end(self, last: bytes) -> None:
        self._ended = True
        if self._chunked:
            last = _chunk(last) + _LAST_CHUNK if last else _LAST_CHUNK
        if last:
            self._hand_over(last)

    def _hand_over(self, framed: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return  # the handler is being cancelled
        transport.write(framed)
        if transport.get_write_buffer_size() > HIGH_WATER_BYTES:
            self._look_at_transport()

    def _look_at_transport(self) -> None:
        held = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if held > HIGH_WATER_BYTES:
            self._stalled_since = self._loop.time()
            self._unread = held
            self._wake.set()

    def _write_slices(self, data: bytes) -> None:
        for at in range(0, len(data), SLICE_BYTES):
            if self._stalled_since is not None:
                self._put_down(data[at:])
                return
            piece = data[at : at + SLICE_BYTES]
            self._hand_over(_chunk(piece) if self._chunked else piece)

    def _put_down(self, data: bytes) -> None:
        self._backlog.append(data)
        self._backlog_bytes += len(data)
        if self._backlog_bytes > self._limits.max_buffered_bytes:
            self._give_up()

    def _look_later(self) -> None:
        now = self._loop.time()
        step = now + min(self._limits.ping_interval_s, self._limits.slow_reader_timeout_s / _LOOKS)
        due = self._last + self._limits.ping_interval_s
        self._timer = self._loop.call_at(min(step, due) if due > now else step, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if self._stalled_since is not None:
            unread = self._transport.get_write_buffer_size() if self._transport is not None else 0
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
        self.closed = True
        self._wake.set()
        self._on_slow()
        if self._transport is not None:
            self._transport.abort()


def _at_once(work: Coroutine[Any, Any, None]) -> None:
    """Runs what waits for nothing, such as the handlers of `on_response_prepare`, where nothing can be awaited."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise RuntimeError("a handler of on_response_prepare waited")


def _chunk(data: bytes) -> bytes:
    """One chunk of HTTP's chunked coding (RFC 9112, 7.1); `data` must not be empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def keep_buffers_small(transport: asyncio.Transport) -> None:
    """Has a new connection hold little that its client has not read, so that one that does not read is noticed."""
    transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
    sock = transport.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        except OSError:
            pass  # not a TCP socket
