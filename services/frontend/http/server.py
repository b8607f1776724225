"""Serves an application over HTTP. It adds to aiohttp's server: a time limit for a connection's
first request, a limit of connections for each address, errors in our form and one log line (no
traceback) for malformed HTTP, and the check that WebSocket clients mask their frames.

Without the time limit, anyone who reaches the port could hold connections open by sending a header
line now and then. Between requests a connection may be idle for aiohttp's keep-alive time, which an
incomplete head does not prolong.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any, cast

from aiohttp import WSCloseCode, web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from services.frontend.http.errors import ErrorShape
from services.frontend.http.masks import MaskedFrames
from services.frontend.http.middleware import refuse_malformed
from services.frontend.http.request_context import OVER_LIMIT
from services.frontend.http.rollout_paths import ROLLOUT_ID, take_rollout
from services.frontend.http.sse import keep_buffers_small
from services.runtime.config.frontend import FrontendConfig
from services.runtime.request_headers import replace_invalid_bytes

MAX_URL_BYTES = 32 * 1024
"""Must differ from `MAX_HEADER_BYTES`: aiohttp reports only the limit that a line exceeds."""
MAX_HEADER_BYTES = 64 * 1024
"""Agents send their state in headers; aiohttp's own limit is 8 KiB."""
IPV6_CLIENT_BITS = 64
"""The network prefix of one client of IPv6, in bits."""
REFUSED_TIMEOUT_S = 2.0
"""Time for the request of a connection over the limit."""
_URL_TOO_LONG = 414
_HEADERS_TOO_LARGE = 431
_UNMASKED = b"\x88\x02" + WSCloseCode.PROTOCOL_ERROR.to_bytes(2)


class Connection(web.RequestHandler):
    """A connection, which is closed unless the head of its first request arrives in time."""

    __slots__ = ("_address", "_config", "_head_timer", "_open", "_shape", "over_limit")

    def __init__(
        self,
        server: web.Server,
        *,
        config: FrontendConfig,
        open: Counter[str],
        shape: ErrorShape,
        **options: Any,
    ) -> None:
        """`open`: the number of open connections of each address."""
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._config = config
        self._open = open
        self._address: str | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._shape = shape
        self.over_limit = False
        """The address has too many connections: this one only gets a refusal."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Counts the connection, and starts the timer."""
        super().connection_made(transport)
        keep_buffers_small(cast(asyncio.Transport, transport))
        if self._config.max_connections_per_address is not None:
            self._count(transport, self._config.max_connections_per_address)
        timeout_s = self._config.head_timeout_s
        if self.over_limit:
            timeout_s = min(timeout_s, REFUSED_TIMEOUT_S)
        self._head_timer = asyncio.get_running_loop().call_later(timeout_s, self.force_close)

    def _count(self, transport: asyncio.BaseTransport, limit: int) -> None:
        address = client_of(transport.get_extra_info("peername"))
        self.over_limit = self._open[address] >= limit
        if not self.over_limit:
            self._address = address
            self._open[address] += 1

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stops the timer, and uncounts the connection."""
        self.head_arrived()
        if self._address is not None:
            self._open[self._address] -= 1
            if not self._open[self._address]:
                del self._open[self._address]
            self._address = None
        super().connection_lost(exc)

    def head_arrived(self) -> None:
        """Stops the timer, because the first request has arrived."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answers an error as aiohttp does, which logs it, and raises if the response has started.
        A 400 gets our form, and another status for a URL or header that is too long."""
        response = super().handle_error(request, status, exc, message)
        if status != 400:
            return response
        text = f"Malformed HTTP request: {_reason(message)}"
        if isinstance(exc, LineTooLong):
            if exc.args[1] == MAX_URL_BYTES:
                text = f"A URL may have at most {MAX_URL_BYTES} bytes."
                status = _URL_TOO_LONG
            else:
                text = f"A header may have at most {MAX_HEADER_BYTES} bytes."
                status = _HEADERS_TOO_LARGE
        elif _reason(message) == "Too many headers received":
            text = "The request has too many headers."
            status = _HEADERS_TOO_LARGE
        return refuse_malformed(text, self._shape, status)

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        """Starts a WebSocket with a check that frames are masked, which aiohttp lacks."""
        super().set_parser(cast(Any, MaskedFrames(parser, self._refuse_unmasked)), data_received_cb)

    def _refuse_unmasked(self) -> None:
        if self.transport is not None:
            self.transport.write(_UNMASKED)
        self.force_close()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Finishes a response. An unknown `Expect`, which aiohttp refuses in plain text, gets an
        error in our form."""
        if isinstance(resp, web.HTTPException):
            resp = refuse_malformed(resp.text or resp.reason, self._shape, resp.status)
        return await super().finish_response(request, resp, start_time)


class HttpRunner(web.AppRunner):
    """Runs an application over `Connection`s. `options`: of `web.RequestHandler`."""

    __slots__ = ("_connection",)

    def __init__(
        self,
        app: web.Application,
        *,
        config: FrontendConfig,
        shape: ErrorShape,
        shutdown_timeout: float = 60.0,
        **options: Any,
    ) -> None:
        options |= {"max_line_size": MAX_URL_BYTES, "max_field_size": MAX_HEADER_BYTES}
        super().__init__(
            app, shutdown_timeout=shutdown_timeout, handler_cancellation=True, **options
        )
        self._connection = {"config": config, "open": Counter[str](), "shape": shape, **options}

    async def setup(self) -> None:
        """Sets the runner up, so that every request stops the timer of its connection."""
        await super().setup()
        server = super().server
        assert server is not None
        replace_invalid_bytes(server)
        make_request = server.request_factory

        def begin(
            message: Any, payload: Any, protocol: Any, writer: Any, task: Any
        ) -> web.BaseRequest:
            protocol.head_arrived()
            message, rollout = take_rollout(message)
            request = make_request(message, payload, protocol, writer, task)
            request[OVER_LIMIT] = protocol.over_limit
            if rollout:
                request[ROLLOUT_ID] = rollout
            return request

        server.request_factory = begin

    @property
    def server(self) -> Any:
        """The factory that sites call for each new connection; None before `setup`."""
        server = super().server
        if server is None:
            return None
        return partial(Connection, server, **self._connection)


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """A logger for `HttpRunner`. Anyone can hang up or send malformed HTTP, and neither is an
    error."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger("aiohttp.server"))

    def exception(self, msg: object, *args: object, exc_info: Any = True, **options: Any) -> None:
        """Logs an error; for malformed HTTP of a client, one line of level `info`. The access log
        has hang-ups."""
        client = args[0] if args else "a client"
        if isinstance(exc_info, ConnectionError):
            self.debug("%s hung up", client)
        elif isinstance(exc_info, HttpProcessingError):
            self.info("malformed HTTP from %s: %s", client, _reason(exc_info.message))
        else:
            super().exception(msg, *args, exc_info=exc_info, **options)


def client_of(peername: object) -> str:
    """Returns the address of a socket's peer: for IPv6 its /64 network, for a Unix socket "".

    `peername`: from asyncio's `get_extra_info`.
    """
    if not isinstance(peername, tuple):
        return ""
    address = ip_address(str(peername[0]))
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:  # a client of IPv4 at a listener for both protocols
        return str(address.ipv4_mapped)
    return str(ip_network((address.packed, IPV6_CLIENT_BITS), strict=False))


def _reason(message: str | None) -> str:
    """Returns the parser's reason without the malformed bytes, which may contain a key."""
    first_line = (message or "").strip().partition("\n")[0]
    reason = first_line.partition(": b")[0].rstrip(":")
    return reason[:200] or "cannot be read"
