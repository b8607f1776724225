"""What surrounds every request: ids, errors in the right shape, one line in the log."""

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping
from typing import TypeAlias

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from structlog.typing import FilteringBoundLogger

from schemas.errors import ErrorInfo, ErrorKind, Invalid, NotFound, TooLarge, TurnwireError
from services.frontend.auth import OPEN_PATHS, KeyRing, authenticate
from services.frontend.dialects.base import ErrorReply

ErrorShape: TypeAlias = Callable[[ErrorInfo, str, int | None], ErrorReply]

_SAFE_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")
_PROBES = OPEN_PATHS - {"/"}


class Exchange:
    """What is known of one request: filled in on its way, said in the log line and the response's headers."""

    def __init__(self, id: str, client_id: str | None, started: float) -> None:
        self.id = id
        """Of [0-9a-f]; the turn has the same, and object ids are made of it."""
        self.request_id = f"req_{id}"
        self.client_id = client_id
        self.started = started
        self.tenant: str | None = None
        self.outcome = ""
        self.begun = False
        """The response is on its way: nothing else can be said any more."""
        self.notes: list[str] = []
        """What was left out of the request."""
        self.fields: dict[str, object] = {}
        """For the log line."""

    def headers(self) -> dict[str, str]:
        """What every response to this request carries."""
        headers = {
            "server": "turnwire",
            "request-id": self.request_id,
            "x-request-id": self.client_id or self.request_id,
        }
        if self.notes:
            headers["x-turnwire-dropped-tools"] = ",".join(self.notes)
        return headers


EXCHANGE: web.RequestKey[Exchange] = web.RequestKey("exchange", Exchange)


def error_shape(path: str, shapes: Mapping[str, ErrorShape], default: ErrorShape) -> ErrorShape:
    """The shape in which clients of a path expect errors: that of the longest prefix."""
    known = [prefix for prefix in shapes if path == prefix or path.startswith(prefix + "/")]
    return shapes[max(known, key=len)] if known else default


def surround(
    shapes: Mapping[str, ErrorShape], default: ErrorShape, ring: KeyRing | None, log: FilteringBoundLogger
) -> Middleware:
    """The middleware of all requests."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        exchange = request[EXCHANGE] = Exchange(secrets.token_hex(12), _client_id(request), loop.time())
        status: int | None = None
        try:
            if ring is not None:
                exchange.tenant = authenticate(request, ring)
            response = await handler(request)
            status = response.status
        except (TurnwireError, web.HTTPException) as error:
            reply = _reply(error, exchange, error_shape(request.path, shapes, default))
            status = reply.status
            response = web.Response(status=reply.status, headers=reply.headers, body=reply.body)
        except (asyncio.CancelledError, ConnectionError):
            exchange.outcome = exchange.outcome or "hangup"
            raise
        except Exception:
            log.exception("request.failed", request=exchange.request_id, path=request.path)
            if exchange.begun:
                raise
            info = ErrorInfo(ErrorKind.ENGINE, "Internal server error")
            reply = error_shape(request.path, shapes, default)(info, exchange.request_id, None)
            exchange.outcome = "internal"
            status = reply.status
            response = web.Response(status=reply.status, headers=reply.headers, body=reply.body)
        finally:
            _log(log, request, exchange, status, loop.time())
        return response

    return middleware


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Signal handler, right before the first byte: ids on every response, streams included."""
    exchange = request.get(EXCHANGE)
    if exchange is not None:
        exchange.begun = True
        response.headers.update(exchange.headers())


def _reply(error: TurnwireError | web.HTTPException, exchange: Exchange, shape: ErrorShape) -> ErrorReply:
    if isinstance(error, TurnwireError):
        exchange.outcome = exchange.outcome or str(error.info.kind)
        reply = shape(error.info, exchange.request_id, None)
        if reply.status == 401:
            reply.headers["www-authenticate"] = "Bearer"
            # Else Claude Code asks ten times, for three minutes, before it says that the key is wrong.
            reply.headers["x-should-retry"] = "false"
        return reply
    exchange.outcome = str(error.status)
    info = _http_error(error)
    reply = shape(info, exchange.request_id, error.status)
    if isinstance(error, web.HTTPMethodNotAllowed):
        reply.headers["allow"] = ",".join(sorted(error.allowed_methods))
    return reply


def _http_error(error: web.HTTPException) -> ErrorInfo:
    if isinstance(error, web.HTTPNotFound):
        return NotFound("Not found").info
    if isinstance(error, web.HTTPMethodNotAllowed):
        return Invalid(f"Method {error.method} is not allowed here").info
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return TooLarge("The request body is too large").info
    if error.status >= 500:
        return ErrorInfo(ErrorKind.ENGINE, error.reason)
    return Invalid(error.reason).info


def _client_id(request: web.Request) -> str | None:
    given = request.headers.get("x-request-id", "")
    return given if _SAFE_ID.fullmatch(given) else None


def _log(log: FilteringBoundLogger, request: web.Request, exchange: Exchange, status: int | None, now: float) -> None:
    write = log.debug if request.path in _PROBES else log.info
    write(
        "request",
        method=request.method,
        path=request.path,
        status=status,
        outcome=exchange.outcome or "ok",
        request=exchange.request_id,
        client_request=exchange.client_id,
        tenant=exchange.tenant,
        seconds=round(now - exchange.started, 4),
        user_agent=request.headers.get("user-agent"),
        **({"dropped_tools": exchange.notes} if exchange.notes else {}),
        **exchange.fields,
    )
