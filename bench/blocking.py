"""The client of a sequence: one request at a time over a blocking socket.

Between the server's write and the time stamp lies one wake-up of this process and nothing else: no event loop, no
selector, no task. `bench.floor` says what is left.
"""

import socket
import struct
import time
from collections.abc import Mapping

from bench.apis import Api
from bench.client import Mode, Target, request_head
from bench.exchange import Exchange
from bench.http1 import BadResponse, ResponseParser

READ_BYTES = 256 * 1024
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)


class SequenceClient:
    """Requests to one target, one after the other. Never raises for what a server does."""

    def __init__(
        self,
        target: Target,
        api: Api,
        mode: Mode = "keepalive",
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        if mode == "quickack" and _QUICKACK is None:
            raise ValueError("this system has no TCP_QUICKACK")
        self._api = api
        self._target = target
        self._mode = mode
        self._timeout_s = timeout_s
        self._head = request_head(target, api, headers)
        self._sock: socket.socket | None = None

    def exchange(self, body: bytes, *, keep: bool = False) -> Exchange:
        """Sends one request and reads its answer to the end."""
        request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        exchange = Exchange(time.monotonic_ns(), keep=keep)
        parser = ResponseParser()
        try:
            sock = self._sock or self._connect()
            exchange.sent = time.monotonic_ns()
            sock.sendall(request)
            self._read(sock, parser, exchange)
        except BlockingIOError:
            exchange.fail(time.monotonic_ns(), f"nothing for {self._timeout_s:g} s")
        except (OSError, BadResponse) as error:
            exchange.fail(time.monotonic_ns(), f"{type(error).__name__}: {error}")
        if self._mode == "fresh" or not parser.keep_alive or not exchange.finished:
            self.close()
        return exchange

    def warm(self) -> None:
        """Opens the connection ahead, unless each request has its own. Raises OSError."""
        if self._mode != "fresh" and self._sock is None:
            self._connect()

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _read(self, sock: socket.socket, parser: ResponseParser, exchange: Exchange) -> None:
        stream = False
        while not parser.complete:
            if self._mode == "quickack" and _QUICKACK is not None:
                sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            data = sock.recv(READ_BYTES)
            now = time.monotonic_ns()
            if not data:
                parser.end()
                break
            exchange.first_byte = exchange.first_byte or now
            body = parser.feed(data)
            if not exchange.status and parser.status:
                exchange.status, exchange.headers = parser.status, parser.headers
                stream = parser.headers.get(b"content-type", b"").startswith(b"text/event-stream")
            if body and stream:
                exchange.body(now, body, self._api.output)
            elif body:
                exchange.plain(body)
        exchange.close(time.monotonic_ns(), self._api)

    def _connect(self) -> socket.socket:
        sock = socket.create_connection((self._target.host, self._target.port), self._timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel's own timeout: Python's would cost a poll before every read.
        sock.settimeout(None)
        limit = struct.pack("ll", int(self._timeout_s), int(self._timeout_s % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._sock = sock
        return sock
