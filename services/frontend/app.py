"""Makes the HTTP application: the APIs, and the middleware around them."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry

from services.frontend.apis.chat.routes import API as CHAT
from services.frontend.apis.completions.routes import API as COMPLETIONS
from services.frontend.apis.engines import API as ENGINES
from services.frontend.apis.health import API as HEALTH
from services.frontend.apis.messages.routes import API as MESSAGES
from services.frontend.apis.models.routes import API as MODELS
from services.frontend.apis.responses.routes import API as RESPONSES
from services.frontend.apis.responses.state.running_responses import (
    RUNNING_RESPONSES,
    RunningResponses,
)
from services.frontend.apis.rollouts.routes import API as ROLLOUTS_API
from services.frontend.apis.shared.api import Api, ApiSetup
from services.frontend.apis.shared.errors import SHARED, union_reply
from services.frontend.apis.tokens import API as TOKENS
from services.frontend.apis.usage import API as USAGE
from services.frontend.hosted.provider import provider_of
from services.frontend.http.auth import Callers
from services.frontend.http.errors import ErrorFormat
from services.frontend.http.file_watch import FileWatch
from services.frontend.http.keys import Limits
from services.frontend.http.middleware import RequestMiddleware, RolloutCallers, add_headers
from services.frontend.http.request_log import RefusalMetrics
from services.frontend.http.request_span import tracing_middleware
from services.frontend.http.server import HttpRunner, ServerLog
from services.frontend.media.image_decoder import ImageDecoder
from services.frontend.media.image_fetch import ImageFetcher, public_connector
from services.frontend.media.image_reader import ImageReader, PutImage
from services.frontend.media.media_reader import MediaReader
from services.frontend.media.pdf_reader import PdfReader
from services.frontend.peers import NO_PEERS, Peers
from services.frontend.rollouts.recording import RecordingGateway
from services.frontend.rollouts.rollouts import Rollouts
from services.frontend.rollouts.store import RolloutStore
from services.frontend.rollouts.turn_writer import TurnWriter
from services.frontend.stored.memory import MemoryStore, StoreLimits
from services.frontend.stored.shared import SharedStore
from services.frontend.turns.admission import Admission
from services.frontend.turns.conversation_limits import ConversationLimits
from services.frontend.turns.hidden.memory import HiddenMemory
from services.frontend.turns.hosted.hosted_turns import HostedToolGateway
from services.frontend.turns.interfaces import Pipeline, TurnGateway
from services.frontend.turns.key_usage import KeyUsage
from services.frontend.turns.metrics import FrontendMetrics
from services.frontend.turns.turn_service import TurnService
from services.runtime.config.frontend import FrontendConfig
from services.runtime.observability.telemetry import FilteringBoundLogger

if TYPE_CHECKING:
    from services.runtime.observability.tracing import Tracer

APIS: tuple[Api, ...] = (
    MESSAGES,
    CHAT,
    COMPLETIONS,
    RESPONSES,
    MODELS,
    TOKENS,
    USAGE,
    ROLLOUTS_API,
    ENGINES,
    HEALTH,
)
"""All APIs of a frontend."""
BODIES_HELD = 8
"""The number of bodies of the largest size that a frontend reads, unpacks and parses at once."""


@dataclass(frozen=True)
class Telemetry:
    """Where the application reports what happens."""

    registry: CollectorRegistry
    log: FilteringBoundLogger
    tracer: "Tracer | None" = None
    """Records the requests."""


@dataclass(frozen=True)
class Buckets:
    """The buckets on the bus that the application uses."""

    put_image: PutImage | None = None
    """Stores an image for the workers. None if no model gets images."""
    stored: SharedStore | None = None
    """The store of responses and threads that all frontends share. None if each has its own."""
    rollouts: RolloutStore | None = None
    """None if there are no rollouts."""


@dataclass(frozen=True)
class FrontendApp:
    """The application, and its parts that the process drains and gives notices."""

    web: web.Application
    gateway: TurnGateway
    """Opens the turns."""
    callers: Callers
    usage: KeyUsage
    responses: RunningResponses
    rollouts: Rollouts | None
    """None if there are no rollouts."""


def make_app(
    config: FrontendConfig,
    pipeline: Pipeline,
    telemetry: Telemetry,
    buckets: Buckets = Buckets(),
    *,
    peers: Peers = NO_PEERS,
    apis: tuple[Api, ...] = APIS,
) -> FrontendApp:
    """Makes the application for a pipeline. `make_runner` runs it.

    Raises ValueError for a key file without keys or a missing Codex profile, OSError if a file
    cannot be read.
    """
    registry = telemetry.registry
    log = telemetry.log
    callers = _callers(config)
    callers.warn_of_expired(log)
    rollouts = None
    if buckets.rollouts is not None:
        rollouts = Rollouts(buckets.rollouts, peers, callers)
    store: MemoryStore | None = buckets.stored
    if store is None:
        store = MemoryStore(StoreLimits.of(config), time.time)
    usage = KeyUsage(config.key_metrics, peers)
    registry.register(usage)

    app = _web_application(config, telemetry, apis, callers, rollouts)
    gateway = pipeline.gateway
    if rollouts is not None:
        gateway = RecordingGateway(gateway, rollouts, TurnWriter(rollouts, log, registry), log)
    hidden = HiddenMemory(store, time.time, config.defer_tools)
    gateway = _with_hosted_tools(gateway, hidden, app, config, telemetry)

    limits = ConversationLimits(
        config.max_messages, config.max_tools, config.max_media, config.max_nesting
    )
    media = _media_reader(app, config, buckets.put_image, log)
    admission = Admission(
        pipeline.catalog, limits, media, hidden=hidden, notices=config.media_notice
    )
    metrics = FrontendMetrics(registry)
    turns = TurnService(
        pipeline=pipeline,
        gateway=gateway,
        admission=admission,
        config=config,
        metrics=metrics,
        usage=usage,
        log=log,
    )

    enabled = tuple(api for api in apis if api.enabled(config))
    setup = ApiSetup(
        app=app,
        config=config,
        pipeline=pipeline,
        turns=turns,
        registry=registry,
        log=log,
        apis=enabled,
        callers=callers,
        store=store,
        rollouts=rollouts,
    )
    for api in enabled:
        api.add_routes(setup)
    return FrontendApp(app, gateway, callers, usage, app[RUNNING_RESPONSES], rollouts)


def make_runner(app: web.Application, config: FrontendConfig, **options: Any) -> web.AppRunner:
    """Makes the runner of the application, which cancels a handler when its client disconnects.

    aiohttp decompresses nothing, because `bodies.read_body` does, within the limit. `options` are
    `AppRunner`'s.
    """
    return HttpRunner(
        app,
        config=config,
        shape=union_reply,
        auto_decompress=False,
        access_log=None,
        logger=ServerLog(),
        **options,
    )


def _web_application(
    config: FrontendConfig,
    telemetry: Telemetry,
    apis: tuple[Api, ...],
    callers: Callers,
    rollouts: Rollouts | None,
) -> web.Application:
    """Makes the application without routes: its middlewares, and the watch of the key file."""
    middlewares = _middlewares(config, telemetry, apis, callers, rollouts)
    app = web.Application(middlewares=middlewares, client_max_size=config.max_body_bytes)
    app.on_response_prepare.append(add_headers)
    if config.api_keys_file:
        log = telemetry.log
        keys = FileWatch([config.api_keys_file], lambda: callers.reload(log), log)
        app.cleanup_ctx.append(keys.context)
    return app


def _middlewares(
    config: FrontendConfig,
    telemetry: Telemetry,
    apis: tuple[Api, ...],
    callers: Callers,
    rollouts: Rollouts | None,
) -> list[Middleware]:
    """Returns the middlewares, the outermost first."""
    requests = RequestMiddleware(
        config,
        _formats(apis),
        SHARED,
        callers,
        telemetry.log,
        rollouts=rollouts or RolloutCallers(),
        refusals=RefusalMetrics(telemetry.registry),
    )
    if telemetry.tracer is None:
        return [requests.handle]
    return [tracing_middleware(telemetry.tracer), requests.handle]


def _callers(config: FrontendConfig) -> Callers:
    limits = Limits(
        config.key_concurrency, config.key_requests_per_minute, config.key_tokens_per_minute
    )
    held = BODIES_HELD * config.max_body_bytes
    return Callers(config.api_keys_file, limits, time.monotonic, max_held_bytes=held)


def _formats(apis: tuple[Api, ...]) -> dict[str, ErrorFormat]:
    """The error format of each API's paths."""
    formats: dict[str, ErrorFormat] = {}
    for api in apis:
        formats |= dict.fromkeys(api.paths, api.errors)
    return formats


def _with_hosted_tools(
    gateway: TurnGateway,
    hidden: HiddenMemory,
    app: web.Application,
    config: FrontendConfig,
    telemetry: Telemetry,
) -> TurnGateway:
    """Returns the gateway with hosted tools in front of it."""
    provider = provider_of(config)
    hosted = HostedToolGateway(
        gateway, provider, config, telemetry.registry, telemetry.log, hidden=hidden
    )
    app.cleanup_ctx.append(hosted.context)
    return hosted


def _media_reader(
    app: web.Application,
    config: FrontendConfig,
    put_image: PutImage | None,
    log: FilteringBoundLogger,
) -> MediaReader:
    pdfs = PdfReader(log, config.pdf_max_pages, config.pdf_page_images)
    fetcher = ImageFetcher(config.image_url_hosts, log, public_connector)
    app.cleanup_ctx.append(fetcher.context)
    decoder = ImageDecoder(log)
    app.cleanup_ctx.append(decoder.context)
    return MediaReader(pdfs, ImageReader(config, put_image, fetcher, decoder))
