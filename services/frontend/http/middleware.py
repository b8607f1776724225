"""The middleware that handles every request: ids, CORS, authentication, errors in each API's form,
the access log."""

import asyncio
import re
import secrets
from collections.abc import Collection, Mapping
from difflib import get_close_matches

from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Handler

from schemas.errors import (
    RETRY_AFTER_S,
    ErrorInfo,
    Invalid,
    NotFound,
    RateLimited,
    Refused,
    TurnwireError,
    Unauthorized,
    unexpected,
)
from services.frontend.http.auth import OPEN_PATHS, Caller, Callers, key_texts
from services.frontend.http.cors import Cors
from services.frontend.http.errors import (
    ErrorFormat,
    ErrorReply,
    ErrorShape,
    ForbiddenModel,
    FormatName,
    UnknownModel,
)
from services.frontend.http.request_context import (
    OVER_LIMIT,
    REQUEST_CONTEXT,
    TRACE_ID,
    RequestContext,
)
from services.frontend.http.request_log import RefusalMetrics, log_access
from services.frontend.http.rollout_paths import ROLLOUT_ID, is_rollout, mask_rollouts
from services.runtime.config.frontend import FrontendConfig
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.runtime.request_headers import AllowedHosts

_SAFE_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")
_UNSAFE_IN_NAME = re.compile(r"[^A-Za-z0-9._:@/+-]")
MAX_LOGGED_NAME = 64
"""Most characters of the name of a model that was refused, in the log."""
_VERSIONS = re.compile(r"/*(v1/+)*")
"""The beginning of a path, whether `/v1` is missing, doubled or right."""
_CLOSE = 0.85
"""The least similarity of a path and its misspelling, as `difflib` measures it."""
_SECURITY_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
"""Set on every response that does not set them itself: no MIME sniffing, no caching."""


class RolloutCallers:
    """Finds the callers of rollouts. This class is for a server without rollouts."""

    async def caller(self, id: str) -> Caller:
        """Returns the caller of a rollout's requests. Raises NotFound, Unauthorized, and
        TurnwireError if the store does not answer."""
        raise NotFound("This server has no rollouts.")


class RequestMiddleware:
    """Admits requests, and answers errors of handlers."""

    def __init__(
        self,
        config: FrontendConfig,
        formats: Mapping[str, ErrorFormat],
        shared: ErrorFormat,
        callers: Callers,
        log: FilteringBoundLogger,
        *,
        rollouts: RolloutCallers,
        refusals: RefusalMetrics,
    ) -> None:
        """`formats`: error formats by prefix of the path; `shared`: the error format of all other
        paths."""
        guarded = not callers.open_to_all
        self._config = config
        self._formats = formats
        self._shared = shared
        self._callers = callers
        self._rollouts = rollouts
        self._cors = Cors(config.cors_origins, guarded=guarded)
        self._hosts = AllowedHosts.of(config.allowed_hosts, config.host, guarded=guarded)
        self._log = log
        self._refusals = refusals

    @web.middleware
    async def handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handles one request."""
        format = self._format_of(request.path)
        context = self._context(request, format.name)
        request[REQUEST_CONTEXT] = context
        status: int | None = None
        try:
            response = await self._answer(request, handler, context, format)
            status = response.status
            return response
        finally:
            now = asyncio.get_running_loop().time()
            log_access(self._log, request, context, status, now)

    def _context(self, request: web.Request, api: FormatName) -> RequestContext:
        now = asyncio.get_running_loop().time()
        context = RequestContext(secrets.token_hex(12), _client_id(request), now)
        context.api = api
        context.trace_id = request.get(TRACE_ID)
        context.cors = self._cors.answer_headers(request.headers)
        context.body_timeout_s = self._config.body_timeout_s
        return context

    async def _answer(
        self, request: web.Request, handler: Handler, context: RequestContext, format: ErrorFormat
    ) -> web.StreamResponse:
        """Returns the handler's response, or a response for its error."""
        try:
            preflight = self._cors.preflight(request.method, request.headers)
            if preflight is not None:
                return web.Response(status=204, headers=preflight)
            await self._admit(request, context)
            return await handler(request)
        except (TurnwireError, web.HTTPException) as error:
            self._note(error, request, context)
            return _response(self._reply_to(error, request, context, format))
        except (asyncio.CancelledError, ConnectionError):
            context.outcome = context.outcome or "hangup"
            raise
        except Exception as error:
            # A bug in a handler, or out of memory: the client gets an error of its API.
            path = mask_rollouts(request.path)
            self._log.exception("request.failed", request=context.request_id, path=path)
            context.outcome = "internal"
            if request.writer.output_size:
                raise  # the response has started: aiohttp closes the connection
            return _response(format.reply(unexpected(error), context.request_id, None))

    def _note(
        self,
        error: TurnwireError | web.HTTPException,
        request: web.Request,
        context: RequestContext,
    ) -> None:
        """Notes an error for the access log, and counts a refused request."""
        if isinstance(error, web.HTTPException):
            context.outcome = str(error.status)
            return
        context.outcome = context.outcome or str(error.info.kind)
        if isinstance(error, Refused):
            self._refusals.count(error)
            context.fields |= {"reason": error.reason, "address": request.remote}
        if isinstance(error, UnknownModel | ForbiddenModel):
            name = _UNSAFE_IN_NAME.sub("", error.name)
            context.fields["requested_model"] = name[:MAX_LOGGED_NAME]

    def _reply_to(
        self,
        error: TurnwireError | web.HTTPException,
        request: web.Request,
        context: RequestContext,
        format: ErrorFormat,
    ) -> ErrorReply:
        """Returns the answer for an error, in the form of the request's API."""
        match error:
            case TurnwireError():
                return _refusal(error.info, context, format)
            case web.HTTPNotFound():
                return self._unknown_path(request, context, format)
            case web.HTTPMethodNotAllowed():
                return _unknown_method(error, context, format)
            case _:
                info = Invalid(error.reason).info
                return format.reply(info, context.request_id, error.status)

    def _format_of(self, path: str) -> ErrorFormat:
        """Returns the error format of a path, by the longest matching prefix."""
        prefixes = [prefix for prefix in self._formats if f"{path}/".startswith(f"{prefix}/")]
        if not prefixes:
            return self._shared
        return self._formats[max(prefixes, key=len)]

    def _unknown_path(
        self, request: web.Request, context: RequestContext, format: ErrorFormat
    ) -> ErrorReply:
        """The answer for a path that does not exist; for a misspelled one, or one with a wrong
        number of `/v1`, that of the API that the client means."""
        hint = ""
        one_v1 = f"/v1/{_VERSIONS.sub('', request.path, count=1)}"
        served = {resource.canonical for resource in request.app.router.resources()}
        meant = _closest(request.path, served) or _closest(one_v1, served)
        if meant:
            format = self._format_of(meant)
            hint = f". Did you mean {meant}?"
            if request.path != one_v1 and meant.startswith("/v1/"):
                hint += f" {format.base_url}"
        message = format.unknown_path.format(method=request.method, path=request.path)
        return format.reply(NotFound(message + hint).info, context.request_id, 404)

    async def _admit(self, request: web.Request, context: RequestContext) -> None:
        """Identifies the caller. Raises RateLimited, Forbidden, Unauthorized, and NotFound for an
        address with an unknown rollout."""
        if request.path not in OPEN_PATHS:
            self._check_connection(request)
        self._cors.check(request.method, request.headers, request.scheme)
        rollout = request.get(ROLLOUT_ID) or _rollout_key(request)
        if rollout and request.path not in OPEN_PATHS:
            context.caller = await self._rollouts.caller(rollout)
            context.fields["rollout"] = mask_rollouts(rollout)
        else:
            context.caller = self._callers.identify(request, openai=context.api == "openai")

    def _check_connection(self, request: web.Request) -> None:
        if request.get(OVER_LIMIT):
            raise RateLimited(
                "Your address has too many connections to this server.",
                "connections",
                retry_after_s=RETRY_AFTER_S,
            )
        host = request.headers.get("host")
        if host is not None:  # clients of HTTP/1.0 may omit it, browsers never do
            self._hosts.check(host)
        needs_certificate = self._config.tls_client_ca_file is not None
        if needs_certificate and not request.get_extra_info("peercert"):
            raise Unauthorized("This server asks for a client certificate.", "certificate")


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Adds the common headers to every response, also to streams. For `on_response_prepare`."""
    headers = response.headers
    # A proxy of HTTP/1.0 may have read another end of a body in chunks (RFC 9112, 6.1).
    in_chunks = request.version < HttpVersion11 and "transfer-encoding" in request.headers
    if in_chunks or request.get(OVER_LIMIT):
        response.force_close()
        headers["connection"] = "close"
    context = request.get(REQUEST_CONTEXT)
    if context is None:
        return
    for name, value in _SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    vary = headers.get("vary")
    headers.update(context.headers())
    if vary and "vary" in context.cors:
        headers["vary"] = f"{vary}, {context.cors['vary']}"


def refuse_malformed(message: str, shape: ErrorShape, status: int = 400) -> web.Response:
    """Answers bytes that are not an HTTP request, and so never reach a middleware. Then the
    connection is closed."""
    context = RequestContext(secrets.token_hex(12), None, 0.0)
    reply = shape(Invalid(message).info, context.request_id, status)
    response = _response(reply)
    response.headers.update({**_SECURITY_HEADERS, **reply.headers, **context.headers()})
    response.force_close()
    return response


def _closest(path: str, served: Collection[str]) -> str:
    """Returns the served path that a client probably means; "" if none is like it."""
    if path in served:
        return path
    matches = get_close_matches(path.lower(), served, n=1, cutoff=_CLOSE)
    return matches[0] if matches else ""


def _response(reply: ErrorReply) -> web.Response:
    return web.Response(status=reply.status, headers=reply.headers, body=reply.body)


def _client_id(request: web.Request) -> str | None:
    """Returns the id that the client gave its request, if a header may repeat it."""
    id = request.headers.get("x-request-id", "")
    return id if _SAFE_ID.fullmatch(id) else None


def _rollout_key(request: web.Request) -> str:
    """Returns the rollout's id that a request has as its key; "" if it has another one."""
    return next(filter(is_rollout, key_texts(request)), "")


def _refusal(info: ErrorInfo, context: RequestContext, format: ErrorFormat) -> ErrorReply:
    reply = format.reply(info, context.request_id, None)
    if reply.status == 401:
        reply.headers["www-authenticate"] = "Bearer"
        # Without it, Claude Code retries for three minutes before it reports the wrong key.
        reply.headers["x-should-retry"] = "false"
    return reply


def _unknown_method(
    error: web.HTTPMethodNotAllowed, context: RequestContext, format: ErrorFormat
) -> ErrorReply:
    info = Invalid(f"Method {error.method} is not allowed here").info
    reply = format.reply(info, context.request_id, error.status)
    reply.headers["allow"] = ",".join(sorted(error.allowed_methods))
    return reply
