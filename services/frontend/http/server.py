"""The HTTP server around an application. Adds to aiohttp's: a time limit for a connection's first request, errors in
our form for what is no HTTP, and one log line instead of a traceback for it.

Without the time limit, anyone who reaches the port can hold connections open by sending a header line now and then.
Between requests a connection may be idle for aiohttp's keep-alive time, which half a head does not prolong.
"""

import asyncio
import logging
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from services.frontend.apis.base import ErrorShape
from services.frontend.http.middleware import refuse_malformed
from services.frontend.http.sse import keep_buffers_small


class Connection(web.RequestHandler):
    """A connection that is closed unless the head of its first request arrives within `head_timeout_s`."""

    __slots__ = ("_head_timeout_s", "_head_timer", "_shape")

    def __init__(self, server: web.Server, *, head_timeout_s: float, shape: ErrorShape, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._head_timeout_s = head_timeout_s
        self._head_timer: asyncio.TimerHandle | None = None
        self._shape = shape

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the timer."""
        super().connection_made(transport)
        keep_buffers_small(cast(asyncio.Transport, transport))
        self._head_timer = asyncio.get_running_loop().call_later(self._head_timeout_s, self.force_close)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stops the timer."""
        self.head_arrived()
        super().connection_lost(exc)

    def head_arrived(self) -> None:
        """Stops the timer: the first request has begun."""
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
        """As aiohttp's, which logs, and raises where the response has begun; its 400 becomes an error of our form."""
        response = super().handle_error(request, status, exc, message)
        if status != 400:
            return response
        reason = (message or "").strip().splitlines()
        return refuse_malformed(
            f"Malformed HTTP request: {reason[0][:200] if reason else 'cannot be read'}", self._shape
        )

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """As aiohttp's, which refuses an unknown `Expect` itself, before any middleware, in plain text."""
        if isinstance(resp, web.HTTPException):
            resp = refuse_malformed(resp.text or resp.reason, self._shape, resp.status)
        return await super().finish_response(request, resp, start_time)


class HttpRunner(web.AppRunner):
    """Runs an application over `Connection`s. `options` are those of `web.RequestHandler`."""

    __slots__ = ("_connection",)

    def __init__(
        self,
        app: web.Application,
        *,
        head_timeout_s: float,
        shape: ErrorShape,
        shutdown_timeout: float = 60.0,
        **options: Any,
    ) -> None:
        super().__init__(app, shutdown_timeout=shutdown_timeout, handler_cancellation=True, **options)
        self._connection = {"head_timeout_s": head_timeout_s, "shape": shape, **options}

    async def setup(self) -> None:
        """As aiohttp's; then has every request stop its connection's timer."""
        await super().setup()
        server = super().server
        assert server is not None
        make_request = server.request_factory

        def begin(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
            protocol.head_arrived()
            return make_request(message, payload, protocol, writer, task)

        server.request_factory = begin

    @property
    def server(self) -> Any:
        """What sites call for each new connection; None before `setup`."""
        server = super().server
        return None if server is None else lambda: Connection(server, **self._connection)


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """A logger for `HttpRunner`: anyone can send what is no HTTP, so that is one line of level `info`, not an error."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger("aiohttp.server"))

    def exception(self, msg: object, *args: object, exc_info: Any = True, **options: Any) -> None:
        """As `Logger.exception`, but for broken HTTP of a client."""
        if isinstance(exc_info, HttpProcessingError):
            reason = " ".join(exc_info.message.split())[:200]
            self.info("malformed HTTP from %s: %s", args[0] if args else "?", reason)
        else:
            super().exception(msg, *args, exc_info=exc_info, **options)
