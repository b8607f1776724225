"""One HTTP connection, with what aiohttp's own lacks: a time for the first request's head, and an answer in our shape
to what is no HTTP.

Without the first, whoever reaches the port can hold connections open by sending a header line now and then. Between
requests a connection may be idle; that has aiohttp's keep-alive time, and sending half a head does not prolong it.
"""

import asyncio
from typing import Any, cast

from aiohttp import web

from services.frontend.exchange import ErrorShape, refuse_malformed
from services.frontend.sse import keep_buffers_small


class Connection(web.RequestHandler):
    """A connection whose first request must have come, head and all, after `head_timeout_s`."""

    __slots__ = ("_head_timeout_s", "_head_timer", "_shape")

    def __init__(self, manager: web.Server, *, head_timeout_s: float, shape: ErrorShape, **options: Any) -> None:
        super().__init__(manager, **options)
        self._head_timeout_s = head_timeout_s
        self._head_timer: asyncio.TimerHandle | None = None
        self._shape = shape

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the clock."""
        super().connection_made(transport)
        keep_buffers_small(cast(asyncio.Transport, transport))
        self._head_timer = asyncio.get_running_loop().call_later(self._head_timeout_s, self.force_close)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stops it."""
        self.head_is_here()
        super().connection_lost(exc)

    def head_is_here(self) -> None:
        """The first request has begun."""
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
        """As aiohttp's, which logs and raises where it must; its text for 400 becomes an error of our shape."""
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
        """As aiohttp's, which refuses an unknown `Expect` by itself, before any middleware, in plain text."""
        if isinstance(resp, web.HTTPException):
            resp = refuse_malformed(resp.text or resp.reason, self._shape, resp.status)
        return await super().finish_response(request, resp, start_time)


class EdgeServer(web.Server):
    """Makes the connections of an application."""

    def __init__(self, inner: web.Server, *, head_timeout_s: float, shape: ErrorShape, **options: Any) -> None:
        """As `inner`, which was made with the same `options`."""
        super().__init__(
            inner.request_handler,
            request_factory=self._begin,
            handler_cancellation=inner.handler_cancellation,
            **options,
        )
        self._make = inner.request_factory
        self._own: dict[str, Any] = {"head_timeout_s": head_timeout_s, "shape": shape, **options}

    def __call__(self) -> web.RequestHandler:
        """A connection."""
        return Connection(self, loop=asyncio.get_running_loop(), **self._own)

    def _begin(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        protocol.head_is_here()
        return self._make(message, payload, protocol, writer, task)


class EdgeRunner(web.AppRunner):
    """Runs an application over `Connection`s. `options` are those of `web.RequestHandler`."""

    __slots__ = ("_head_timeout_s", "_options", "_shape")

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
        self._head_timeout_s = head_timeout_s
        self._shape = shape
        self._options = options

    async def _make_server(self) -> web.Server:
        inner = await super()._make_server()
        return EdgeServer(inner, head_timeout_s=self._head_timeout_s, shape=self._shape, **self._options)
