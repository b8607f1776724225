"""What surrounds every request: ids, who may ask, errors in the right shape, one line in the log."""

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol, TypeAlias

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from schemas.errors import ErrorInfo, ErrorKind, Invalid, NotFound, TooLarge, TurnwireError, Unauthorized
from services.frontend.auth import OPEN_PATHS, Caller, Callers
from services.frontend.cors import Cors
from services.frontend.dialects.base import ErrorReply
from services.frontend.guard import CALLER
from services.frontend.rate_headers import rate_headers

Api: TypeAlias = Literal["anthropic", "openai", "shared"]
ErrorShape: TypeAlias = Callable[[ErrorInfo, str, int | None], ErrorReply]

SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
"""On every response that does not say otherwise itself: answers are nobody else's, and nothing but what they say."""
_SAFE_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")
MAX_NOTES = 16
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_PROBES = OPEN_PATHS - {"/"}


class Cost(Protocol):
    """What a request has taken so far."""

    @property
    def tokens(self) -> int:
        """Of the prompt, as far as they were not cached, and of the answer."""
        ...


class Exchange:
    """What is known of one request: filled in on its way, said in the log line and the response's headers."""

    def __init__(self, id: str, client_id: str | None, started: float) -> None:
        self.id = id
        """Of [0-9a-f]; the turn has the same, and object ids are made of it."""
        self.request_id = f"req_{id}"
        self.client_id = client_id
        self.started = started
        self.api: Api = "shared"
        self.caller: Caller | None = None
        """Set before the handler is called."""
        self.body_timeout_s: float | None = None
        """How long the request's body may take."""
        self.outcome = ""
        self.notes: list[str] = []
        """What was left out of the request, fit for a header; `note` says it."""
        self.fields: dict[str, object] = {}
        """For the log line."""
        self.cors: dict[str, str] = {}

    @property
    def tenant(self) -> str | None:
        """The holder of the key; None where there are no keys."""
        return self.caller.tenant if self.caller else None

    @contextmanager
    def turn(self, cost: "Cost") -> Iterator[None]:
        """Within it the caller has a request open that decodes; at the end he pays for it. Raises RateLimited."""
        if self.caller is None:
            yield
            return
        with self.caller.request():
            try:
                yield
            finally:
                self.caller.spend(cost.tokens)

    def note(self, left_out: Sequence[str]) -> None:
        """Tells the client what was left out of its request, in words that it may have written itself."""
        self.notes = [_UNSAFE.sub("", what)[:64] for what in left_out[:MAX_NOTES]]

    def headers(self) -> dict[str, str]:
        """What every response to this request carries."""
        headers = {
            "server": "turnwire",
            "request-id": self.request_id,
            "x-request-id": self.client_id or self.request_id,
            **self.cors,
        }
        if self.caller is not None and self.api != "shared":
            headers |= rate_headers(self.caller.rates(), self.api, time.time())
        if self.notes:
            headers["x-turnwire-dropped-tools"] = ",".join(self.notes)
        return headers


EXCHANGE: web.RequestKey[Exchange] = web.RequestKey("exchange", Exchange)


class Edge(Struct, frozen=True):
    """What is known of every request before anybody handles it."""

    apis: Mapping[str, Api]
    """Which API's clients ask for the paths under a prefix; all others are `shared`."""
    shapes: Mapping[Api, ErrorShape]
    """How the clients of each API read errors."""
    callers: Callers
    cors: Cors
    needs_certificate: bool = False
    """Only clients with a certificate may ask for what is not open to all."""
    body_timeout_s: float | None = None

    def api_of(self, path: str) -> Api:
        """Whose clients ask for this path: that of the longest prefix."""
        known = [prefix for prefix in self.apis if path == prefix or path.startswith(prefix + "/")]
        return self.apis[max(known, key=len)] if known else "shared"

    def admit(self, request: web.Request, exchange: Exchange) -> None:
        """Learns who asks. Raises Forbidden and Unauthorized."""
        self.cors.check(request.method, request.headers, request.scheme)
        if self.needs_certificate and request.path not in OPEN_PATHS and not request.get_extra_info("peercert"):
            raise Unauthorized("This server asks for a client certificate.")
        exchange.caller = self.callers.identify(request, openai=exchange.api == "openai")
        CALLER.set(exchange.caller)


def surround(edge: Edge, log: FilteringBoundLogger) -> Middleware:
    """The middleware of all requests."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        exchange = request[EXCHANGE] = Exchange(secrets.token_hex(12), _client_id(request), loop.time())
        request = _legible(request)
        exchange.api = edge.api_of(request.path)
        exchange.cors = edge.cors.headers(request.headers)
        exchange.body_timeout_s = edge.body_timeout_s
        shape = edge.shapes[exchange.api]
        status: int | None = None
        try:
            preflight = edge.cors.preflight(request.method, request.headers)
            if preflight is not None:
                response: web.StreamResponse = web.Response(status=204, headers=preflight)
            else:
                edge.admit(request, exchange)
                response = await handler(request)
            status = response.status
        except (TurnwireError, web.HTTPException) as error:
            reply = _reply(error, exchange, shape)
            status = reply.status
            response = web.Response(status=reply.status, headers=reply.headers, body=reply.body)
        except (asyncio.CancelledError, ConnectionError):
            exchange.outcome = exchange.outcome or "hangup"
            raise
        except Exception:
            log.exception("request.failed", request=exchange.request_id, path=request.path)
            if request.writer.output_size:
                raise  # the response is on its way: nothing else can be said any more
            info = ErrorInfo(ErrorKind.ENGINE, "Internal server error")
            reply = shape(info, exchange.request_id, None)
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
        for name, value in SECURITY_HEADERS.items():
            response.headers.setdefault(name, value)
        vary = response.headers.get("vary")
        response.headers.update(exchange.headers())
        if vary and exchange.cors.get("vary"):
            response.headers["vary"] = f"{vary}, {exchange.cors['vary']}"


def refuse_malformed(message: str, shape: ErrorShape, status: int = 400) -> web.Response:
    """The answer to what is no HTTP request, and so reached no middleware. The connection is closed behind it."""
    id = secrets.token_hex(12)
    reply = shape(Invalid(message).info, f"req_{id}", status)
    headers = {**SECURITY_HEADERS, **reply.headers, **Exchange(id, None, 0.0).headers()}
    response = web.Response(status=reply.status, headers=headers, body=reply.body)
    response.force_close()
    return response


def _legible(request: web.Request) -> web.Request:
    """The request with headers that can be written anywhere: they may hold any bytes, and those that are no UTF-8 are
    half surrogate pairs here, which neither JSON nor the bus takes."""
    if all(map(str.isascii, request.headers.values())):
        return request
    mended = [(name, value.encode(errors="replace").decode()) for name, value in request.headers.items()]
    return request.clone(headers=mended)


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
