"""The HTTP application: which path is served by whom, and what surrounds them all."""

import time
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from services.frontend.auth import Callers
from services.frontend.connection import EdgeRunner
from services.frontend.cors import Cors
from services.frontend.dialects.base import Dialect
from services.frontend.dialects.chat.dialect import Chat
from services.frontend.dialects.chat.shape import Settings
from services.frontend.dialects.completions.dialect import Completions
from services.frontend.dialects.messages.dialect import Messages
from services.frontend.dialects.shared_errors import openai_reply, union_reply
from services.frontend.exchange import Api, Edge, add_headers, surround
from services.frontend.file_watch import FileWatch
from services.frontend.guard import GuardedGateway
from services.frontend.http_log import HttpLog
from services.frontend.keys import Limits
from services.frontend.metrics import FrontendMetrics
from services.frontend.responses.server import RESPONSES, ResponsesServer, Sharing
from services.frontend.routes.health import HealthRoutes
from services.frontend.routes.models import CODEX_PATH, ModelRoutes
from services.frontend.routes.openapi import OpenApiRoute
from services.frontend.routes.responses import ResponseRoutes
from services.frontend.routes.text import TextRoutes
from services.frontend.routes.turns import TurnRoute
from services.frontend.shape_limits import ShapeLimits
from services.frontend.turn_server import TurnServer
from services.frontend.turns import TurnGateway
from services.runtime.config import FrontendConfig
from services.runtime.process import VERSION

MAX_HEADER_BYTES = 64 * 1024
"""Agents send their state in headers; aiohttp's own limit is 8 KiB."""

CALLERS: web.AppKey[Callers] = web.AppKey("callers", Callers)
"""Who may use the application, and what each has open."""
_APIS: dict[str, Api] = {
    "/v1/messages": "anthropic",
    **dict.fromkeys(("/v1/chat", "/v1/completions", "/v1/embeddings", "/v1/responses"), "openai"),
}
"""Whose clients ask for which paths; all others are for both."""


def make_app(
    config: FrontendConfig,
    gateway: TurnGateway,
    registry: CollectorRegistry,
    log: FilteringBoundLogger,
    *,
    sharing: Sharing | None = None,
) -> web.Application:
    """The application over a gateway. Run it with `make_runner`. `sharing`: what stored Responses are shared by.

    Raises ValueError for a key file that holds no keys or something else and for Codex profiles that are not there,
    OSError if a file cannot be read.
    """
    messages = Messages()
    callers = _callers(config)
    app = web.Application(middlewares=[surround(_edge(config, callers), log)], client_max_size=config.max_body_bytes)
    app[CALLERS] = callers
    app.on_response_prepare.append(add_headers)
    if config.api_keys_file:
        app.cleanup_ctx.append(FileWatch([config.api_keys_file], callers.reload, log).context)
    gateway = GuardedGateway(
        gateway, ShapeLimits(config.max_messages, config.max_tools, config.max_media, config.max_nesting)
    )
    metrics = FrontendMetrics(registry)
    server = TurnServer(gateway, config, metrics, log)
    if config.enable_anthropic_api:
        _add_turns(app, "/v1/messages", messages, server, config)
    fingerprint = f"fp_turnwire_{VERSION}"
    chat = Chat(Settings(config.reasoning_field, config.reasoning_details, fingerprint))
    _add_turns(app, "/v1/chat/completions", chat, server, config)
    _add_turns(app, "/v1/completions", Completions(fingerprint), server, config)
    responses = app[RESPONSES] = ResponsesServer(config, gateway, server, metrics, log, sharing=sharing)
    app.on_shutdown.append(responses.close)
    ResponseRoutes(responses).add_to(app.router)
    _add_text(app, TextRoutes(messages, chat, gateway, config.max_body_bytes), anthropic=config.enable_anthropic_api)
    _add_models(app, ModelRoutes.of(config, gateway))
    _add_health(app, HealthRoutes(gateway, registry))
    return app


def make_runner(app: web.Application, *, head_timeout_s: float = 30.0, **options: Any) -> web.AppRunner:
    """The runner that the application needs: a handler ends when its client hangs up, and a connection without a
    request when `head_timeout_s` have passed.

    `auto_decompress`: bodies are decoded, within the limit, by `limits.read_body`. Further `options` are `AppRunner`'s.
    """
    return EdgeRunner(
        app,
        head_timeout_s=head_timeout_s,
        shape=union_reply,
        auto_decompress=False,
        access_log=None,
        logger=HttpLog(),
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        **options,
    )


def _callers(config: FrontendConfig) -> Callers:
    limits = Limits(config.key_concurrency, config.key_requests_per_minute, config.key_tokens_per_minute)
    return Callers(config.api_keys_file, limits, time.monotonic)


def _edge(config: FrontendConfig, callers: Callers) -> Edge:
    return Edge(
        apis=_APIS,
        shapes={"anthropic": Messages().error, "openai": openai_reply, "shared": union_reply},
        callers=callers,
        cors=Cors(config.cors_origins, guarded=not callers.open_to_all),
        needs_certificate=config.tls_client_ca_file is not None,
        body_timeout_s=config.body_timeout_s,
    )


def _add_turns(app: web.Application, path: str, dialect: Dialect, server: TurnServer, config: FrontendConfig) -> None:
    app.router.add_post(path, TurnRoute(dialect, server, config.max_body_bytes).create)


def _add_text(app: web.Application, text: TextRoutes, *, anthropic: bool) -> None:
    if anthropic:
        app.router.add_post("/v1/messages/count_tokens", text.count)
    for prefix in ("/v1", ""):
        app.router.add_post(f"{prefix}/tokenize", text.tokenize)
        app.router.add_post(f"{prefix}/detokenize", text.detokenize)


def _add_models(app: web.Application, models: ModelRoutes) -> None:
    app.router.add_get("/v1/models", models.list)
    app.router.add_get("/v1/models/{id:.+}", models.retrieve)
    app.router.add_get(CODEX_PATH, models.codex)
    app.on_response_prepare.append(models.tell_etag)


def _add_health(app: web.Application, health: HealthRoutes) -> None:
    app.router.add_get("/live", health.live)
    app.router.add_get("/ready", health.ready)
    app.router.add_get("/health", health.health)
    app.router.add_get("/metrics", health.metrics)
    app.router.add_get("/version", health.version)
    app.router.add_get("/", health.hello)
    app.router.add_get("/api/hello", health.hello)
    app.router.add_get("/openapi.json", OpenApiRoute(app.router).get)
