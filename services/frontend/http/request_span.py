"""The span of each HTTP request, where tracing is on."""

from time import time_ns
from typing import TYPE_CHECKING

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from schemas.errors import ErrorKind
from services.frontend.http.auth import OPEN_PATHS
from services.frontend.http.middleware import REQUEST_CONTEXT, TRACE_ID

if TYPE_CHECKING:
    from services.runtime.observability.tracing import Tracer

_SERVER_ERROR = 500
_FAILURES = {ErrorKind.ENGINE, ErrorKind.OVERLOADED, ErrorKind.UNAVAILABLE, ErrorKind.TIMED_OUT, "internal"}


def tracing_middleware(tracer: "Tracer") -> Middleware:
    """Makes the middleware, which has to be the outermost one.

    Probes have no span. A WebSocket has none either: each of its turns is a trace of its own, or part of the client's.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in OPEN_PATHS:
            return await handler(request)
        if request.headers.get("upgrade", "").lower() == "websocket":
            with tracer.within(request.headers, None):
                return await handler(request)
        method = request.method if request.method in hdrs.METH_ALL else "_OTHER"
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else None
        attributes = {
            "http.request.method": method,
            "http.route": route,
            "url.path": request.path if route is not None else None,
            "url.scheme": request.scheme,
        }
        span = tracer.serve(f"{method} {route}" if route else method, request.headers, attributes)
        if span.sampled:
            request[TRACE_ID] = span.trace_id
        response: web.StreamResponse | None = None
        try:
            with tracer.within(request.headers, span):
                response = await handler(request)
            return response
        finally:
            if span.sampled:
                context = request.get(REQUEST_CONTEXT)
                outcome = (context.outcome if context is not None else "") or "ok"
                status = response.status if response is not None else None
                stream = context.fields.get("stream") if context is not None else None
                span.set(
                    {
                        "http.response.status_code": status,
                        "gen_ai.request.stream": stream if isinstance(stream, bool) else None,
                        "turnwire.request": context.request_id if context is not None else None,
                        "turnwire.outcome": outcome,
                    }
                )
                span.end(time_ns(), error=_error(outcome, status))

    return middleware


def _error(outcome: str, status: int | None) -> str | None:
    """The `error.type` of a request that this server failed, if only in mid-stream; a client's error is none."""
    return outcome if outcome in _FAILURES or (status or 0) >= _SERVER_ERROR else None
