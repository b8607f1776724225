"""An HTTP/1.1 client that measures: raw asyncio, one time stamp and a few searches in bytes per
read.

`exchange` never raises for errors of the server: a refusal, a broken stream or silence is a result
like any other.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, TypeAlias, cast
from urllib.parse import urlsplit

from msgspec import Struct

from bench.apis import Api
from bench.exchange import Exchange
from bench.http1 import BadResponse, ResponseParser

Mode: TypeAlias = Literal["keepalive", "fresh"]
"""`keepalive` as real clients do; `fresh`: a connection for each request."""

MODES: tuple[Mode, ...] = ("keepalive", "fresh")


class Target(Struct, frozen=True):
    """The server that requests go to: a numeric address."""

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "Target":
        """Parses the URL of a server on this machine."""
        parts = urlsplit(url)
        return cls(parts.hostname or "", parts.port or 80)


def request_head(target: Target, api: Api) -> bytes:
    """Returns a request's head up to the value of Content-Length."""
    fields = {
        "host": f"{target.host}:{target.port}",
        "content-type": "application/json",
        "accept": "text/event-stream",
        "user-agent": "turnwire-bench",
        **api.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {api.path} HTTP/1.1\r\n{lines}content-length: ".encode()


class Client:
    """Requests to one target over as many connections as they need."""

    def __init__(
        self, target: Target, api: Api, mode: Mode = "keepalive", *, timeout_s: float = 120.0
    ) -> None:
        self.api = api
        self._target = target
        self._mode = mode
        self._timeout_s = timeout_s
        self._idle: list[_Connection] = []
        self._head = request_head(target, api)

    async def exchange(self, body: bytes, *, keep: bool = False) -> Exchange:
        """Sends one request and waits for the end of its answer."""
        exchange = Exchange(time.monotonic_ns(), keep=keep)
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = self._idle.pop() if self._idle else await self._connect()
                await connection.exchange(
                    b"%b%d\r\n\r\n%b" % (self._head, len(body), body), exchange
                )
        except TimeoutError:
            exchange.fail(time.monotonic_ns(), f"no end within {self._timeout_s:g} s")
        except OSError as error:
            exchange.fail(time.monotonic_ns(), f"{type(error).__name__}: {error.strerror or error}")
        finally:
            if connection and (self._mode == "fresh" or not connection.reusable):
                connection.close()
            elif connection:
                self._idle.append(connection)
        return exchange

    async def warm(self, connections: int) -> None:
        """Opens connections in advance, unless each request has its own. A failure here shows in
        the exchange."""
        with suppress(OSError):
            while self._mode != "fresh" and len(self._idle) < connections:
                self._idle.append(await self._connect())

    def close(self) -> None:
        """Closes all idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _lost(self, connection: "_Connection") -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, (self._target.host, self._target.port))
            _, connection = await loop.create_connection(
                lambda: _Connection(self.api, self._lost), sock=sock
            )
        except BaseException:
            sock.close()
            raise
        return connection


class _Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self, api: Api, on_lost: "Callable[[_Connection], None]") -> None:
        self._api = api
        self._on_lost = on_lost
        self._parser = ResponseParser()
        self._exchange: Exchange | None = None
        self._stream = False
        self._done: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport
        self._open = True

    @property
    def reusable(self) -> bool:
        """Whether the next request may use this connection."""
        return self._open and self._exchange is None and self._parser.keep_alive

    async def exchange(self, request: bytes, exchange: Exchange) -> None:
        """Sends the request; returns when the exchange has ended. Raises ConnectionError if it
        cannot be sent."""
        if not self._open:
            raise ConnectionResetError("the server closed the idle connection")
        self._parser.reset()
        self._exchange = exchange
        self._done = asyncio.get_running_loop().create_future()
        exchange.sent = time.monotonic_ns()
        self._transport.write(request)
        await self._done

    def close(self) -> None:
        """Closes the connection at once."""
        self._exchange = None
        self._open = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        exchange = self._exchange
        if exchange is None:
            self.close()
            return
        parser = self._parser
        try:
            body = parser.feed(data)
        except BadResponse as error:
            exchange.fail(now, str(error))
            self.close()
            self._wake()
            return
        if not exchange.status and parser.status:
            exchange.status = parser.status
            self._stream = parser.headers.get(b"content-type", b"").startswith(b"text/event-stream")
        if body:
            if self._stream:
                exchange.body(now, body, self._api.output)
            else:
                exchange.plain(body)
        if parser.complete:
            self._exchange = None
            exchange.close(now, self._api)
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._open = False
        self._on_lost(self)
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        try:
            self._parser.end()
        except BadResponse as cut:
            exchange.fail(time.monotonic_ns(), f"{cut}{f': {error}' if error else ''}")
        self._wake()

    def _wake(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
