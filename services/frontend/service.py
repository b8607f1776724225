"""Runs the frontend process, between HTTP and the bus."""

import asyncio
import time

from aiohttp import web

from schemas import subjects
from schemas.control import Load
from schemas.notices import (
    PromptSeen,
    ResponseCancelled,
    ResponseDeleted,
    RolloutChanged,
    SessionPlaced,
    UsageReported,
    UsageRequested,
    decode_notice,
)
from services.frontend.app import Buckets, FrontendApp, Telemetry, make_app, make_runner
from services.frontend.gateway.gateway import BusGateway
from services.frontend.gateway.pipeline import BusPipeline
from services.frontend.http.file_watch import FileWatch
from services.frontend.http.tls import Tls
from services.frontend.peers import BusPeers, Peers
from services.frontend.rollouts.store import RolloutStore, rollout_bucket
from services.frontend.stored.memory import StoreLimits
from services.frontend.stored.shared import SharedStore, bucket_config
from services.images.store import ImageStore
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.loader import ConfigError
from services.runtime.nats.bus import Delivery
from services.runtime.observability.memory import relax_gc_and_trim_heap
from services.runtime.presence.heartbeats import Service
from services.runtime.process import Process
from services.runtime.storage.kv import Bucket, BucketConfig

BACKLOG = 1024
LAST_BYTES_S = 2.0
"""Time for handlers to write their last bytes after the drain."""


class _Frontend(Service):
    """The HTTP site and its open turns."""

    def __init__(self, gateway: BusGateway, app: FrontendApp, site: web.TCPSite) -> None:
        self._gateway = gateway
        self._app = app
        self._site = site

    def load(self) -> Load:
        """Returns the number of open turns."""
        return Load(running=self._gateway.running)

    async def drain(self) -> None:
        """Stops accepting connections. Returns when no turn is open and no response is being
        stored."""
        await self._site.stop()
        await asyncio.gather(self._app.gateway.drain(), self._app.responses.drain())


async def run(config: FrontendConfig) -> None:
    """Serves HTTP until `Process.stop`, then waits for open turns.

    Raises:
        ConfigError: a file or the port that the configuration names cannot be used.
        TurnwireError: the bus cannot be reached.
        EngineFailed: the bus was lost for good.
    """
    process = Process("frontend", config)
    peers = BusPeers(process)
    pipeline = BusPipeline(process, config, peers)
    telemetry = Telemetry(process.metrics, process.log, process.tracer)
    buckets = _open_buckets(process, peers, config)
    try:
        app = make_app(config, pipeline, telemetry, buckets, peers=peers)
        tls = Tls.of(config)
    except (ValueError, OSError) as error:
        raise ConfigError([str(error)]) from error
    await process.connect()
    await pipeline.gateway.start()
    notices = _NoticeReceiver(pipeline, app)
    await process.subscribe(subjects.frontends(), notices.receive)

    scheme = "http"
    context = None
    if tls is not None:
        scheme = "https"
        context = tls.context
        process.spawn(FileWatch(tls.files, tls.reload, process.log).run(), "watch certificates")
    runner = make_runner(app.web, config, shutdown_timeout=LAST_BYTES_S)
    await runner.setup()
    site = web.TCPSite(runner, config.host, config.port, backlog=BACKLOG, ssl_context=context)
    try:
        process.serve(_Frontend(pipeline.gateway, app, site))
        await process.heartbeats.announce()  # a client's first request must find the models
        await _listen(site)
        port = runner.addresses[0][1]
        process.log.info("frontend.listening", host=config.host, port=port, scheme=scheme)
        relax_gc_and_trim_heap()
        await process.run()
    finally:
        await runner.cleanup()


class _NoticeReceiver:
    """Passes on the notices of other frontends."""

    def __init__(self, pipeline: BusPipeline, app: FrontendApp) -> None:
        self._pipeline = pipeline
        self._app = app

    def receive(self, delivery: Delivery) -> None:
        """Applies one notice."""
        match decode_notice(delivery.data):
            case SessionPlaced() as placed:
                self._pipeline.catalog.apply(placed)
            case PromptSeen() as seen:
                self._pipeline.gateway.prompts.apply(seen)
            case RolloutChanged() as changed if self._app.rollouts is not None:
                self._app.rollouts.apply(changed)
            case ResponseDeleted() | ResponseCancelled() as notice:
                self._app.responses.apply_notice(notice)
            case UsageRequested() | UsageReported() as notice:
                self._app.usage.apply(notice)


def _open_buckets(process: Process, peers: Peers, config: FrontendConfig) -> Buckets:
    images = ImageStore(process.bus, config, process.log, patience_s=config.wait_s)
    stored = None
    if config.response_store == "shared":
        stored = SharedStore(
            StoreLimits.of(config),
            time.time,
            _open_bucket(process, bucket_config(config), config),
            peers,
            process.log,
            spawn=process.spawn,
        )
    rollouts = None
    if config.rollout_store_mb:
        bucket = _open_bucket(process, rollout_bucket(config), config)
        rollouts = RolloutStore(bucket, images)
    return Buckets(images.put, stored, rollouts)


def _open_bucket(process: Process, bucket: BucketConfig, config: FrontendConfig) -> Bucket:
    return Bucket(process.bus, bucket, process.log, patience_s=config.wait_s)


async def _listen(site: web.TCPSite) -> None:
    try:
        await site.start()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError([f"{reason}; choose another address with --host and --port"]) from error
