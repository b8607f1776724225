"""Records the span of each HTTP request, if tracing is on."""

from functools import partial
from time import time_ns
from typing import TYPE_CHECKING

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from schemas.errors import ErrorKind
from services.frontend.http.auth import OPEN_PATHS
from services.frontend.http.request_context import REQUEST_CONTEXT, TRACE_ID, RequestContext
from services.frontend.http.rollout_paths import mask_rollouts
from services.runtime.observability.scope import Attributes

if TYPE_CHECKING:
    from services.runtime.observability.tracing import OpenSpan, Tracer

_SERVER_ERROR = 500
_FAILURES = {
    ErrorKind.ENGINE,
    ErrorKind.OVERLOADED,
    ErrorKind.UNAVAILABLE,
    ErrorKind.TIMED_OUT,
    "internal",
}


def tracing_middleware(tracer: "Tracer") -> Middleware:
    """Makes the middleware, which must be the outermost one.

    Probes have no span. Neither has a WebSocket: each of its turns is a trace of its own, or part
    of the client's.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in OPEN_PATHS:
            return await handler(request)
        if request.headers.get("upgrade", "").lower() == "websocket":
            with tracer.within(partial(tracer.sample, request.headers)):
                return await handler(request)
        scope = tracer.sample(request.headers)
        if scope is None:
            with tracer.within(lambda: None):
                return await handler(request)
        span = scope.open(*_describe(request), server=True)
        request[TRACE_ID] = span.trace_id
        status: int | None = None
        try:
            with tracer.within(lambda: span):
                response = await handler(request)
            status = response.status
            return response
        finally:
            _end_span(span, request[REQUEST_CONTEXT], status)

    return middleware


def _describe(request: web.Request) -> tuple[str, int, Attributes]:
    """Returns the name, the start and the first attributes of a request's span."""
    method = request.method if request.method in hdrs.METH_ALL else "_OTHER"
    attributes: dict[str, str | None] = {
        "http.request.method": method,
        "http.route": None,
        "url.path": None,
        "url.scheme": request.scheme,
    }
    name = method
    resource = request.match_info.route.resource
    if resource is not None:
        name = f"{method} {resource.canonical}"
        attributes["http.route"] = resource.canonical
        attributes["url.path"] = mask_rollouts(request.path)
    return name, time_ns(), attributes


def _end_span(span: "OpenSpan", context: RequestContext, status: int | None) -> None:
    """Records the outcome of a request. `status`: None if the handler did not return."""
    outcome = context.outcome or "ok"
    stream = context.fields.get("stream")
    span.set(
        {
            "http.response.status_code": status,
            "gen_ai.request.stream": stream if isinstance(stream, bool) else None,
            "turnwire.request": context.request_id,
            "turnwire.outcome": outcome,
        }
    )
    span.end(time_ns(), error=_error(outcome, status))


def _error(outcome: str, status: int | None) -> str | None:
    """Returns the `error.type` if this server failed the request, even in mid-stream; None for a
    client's error."""
    is_failure = outcome in _FAILURES or (status is not None and status >= _SERVER_ERROR)
    return outcome if is_failure else None
