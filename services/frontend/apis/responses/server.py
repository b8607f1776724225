"""Assembles the parts of the stateful Responses API, and ends them with the process."""

import asyncio
import contextlib
import time

from aiohttp import web
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from schemas.control import ResponseNotice
from services.frontend.apis.responses.compaction import Compactor, ModelSealer
from services.frontend.apis.responses.dialect import Responses
from services.frontend.apis.responses.intake import Intake
from services.frontend.apis.responses.live.background import Background
from services.frontend.apis.responses.live.connections import Connections
from services.frontend.apis.responses.live.runner import Runner
from services.frontend.apis.responses.live.socket import Services
from services.frontend.apis.responses.sealing import TextSealer
from services.frontend.apis.responses.store.chain import Histories
from services.frontend.apis.responses.store.memory import MemoryStore, StoreLimits
from services.frontend.apis.responses.store.shared import Peers, SharedStore
from services.frontend.http.sse import StreamLimits
from services.frontend.pipeline.interfaces import TurnGateway
from services.frontend.pipeline.metrics import FrontendMetrics
from services.frontend.pipeline.turn_server import TurnServer
from services.runtime.config import FrontendConfig
from services.runtime.kv import Bucket
from services.runtime.seal import Sealer

SETTLE_S = 2.0
"""At the end, for the last writes to the bucket."""
CLOSING = "This server is shutting down; open a new connection to go on."


class Sharing(Struct, frozen=True):
    """How several frontends share stored responses."""

    bucket: Bucket
    peers: Peers


class ResponsesServer:
    """Everything behind `/v1/responses` except the handlers."""

    def __init__(
        self,
        config: FrontendConfig,
        gateway: TurnGateway,
        server: TurnServer,
        metrics: FrontendMetrics,
        log: FilteringBoundLogger,
        *,
        sharing: Sharing | None = None,
    ) -> None:
        """Raises OSError where the sealing key cannot be read."""
        self.dialect = Responses()
        self.gateway = gateway
        self.turns = server
        self.metrics = metrics
        self.max_body_bytes = config.max_body_bytes
        self.limits = StreamLimits(config.ping_interval_s, config.slow_reader_timeout_s, config.max_buffered_bytes)
        self._peers = sharing.peers if sharing is not None else None
        limits = StoreLimits(config.response_store_ttl_s, config.response_store_entries, config.response_store_bytes)
        self.store = MemoryStore(limits, time.time)
        if sharing is not None:
            self.store = SharedStore(limits, time.time, sharing.bucket, sharing.peers, log)
        common = Sealer.load(config.seal_key_file, "") if config.seal_key_file else None

        def sealer_of(model: str, tenant: str | None) -> TextSealer:
            return common.of(tenant) if common is not None else ModelSealer(gateway, model, tenant)

        self.runner = Runner(server, gateway, config, metrics, log)
        compactor = Compactor(self.dialect, self.runner, gateway, sealer_of)
        self.intake = Intake(self.dialect, Histories(self.store), sealer_of, compactor)
        owner = sharing.peers.id if sharing is not None else "here"
        self.background = Background(self.runner, self.store, log, slots=config.max_background, owner=owner)
        services = Services(self.dialect, self.runner, self.store, self.intake, self.limits, log)
        self.connections = Connections(services, config)

    def apply_notice(self, notice: ResponseNotice) -> None:
        """Applies a notice of another frontend about a stored response."""
        if notice.action == "cancel":
            self.background.cancel(notice.id)
        else:
            self.store.forget(notice.id)

    def cancel_elsewhere(self, id: str) -> None:
        """Requests that the frontend in which a response runs cancels it."""
        if self._peers is not None:
            self._peers.publish_notice(ResponseNotice("cancel", id))

    async def drain(self) -> None:
        """Accepts nothing new; returns when background responses have ended and all writes to the store are done."""
        self.connections.drain(CLOSING)
        try:
            await self.background.drain()
        finally:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.store.settled(), SETTLE_S)

    async def close(self, _app: web.Application) -> None:
        """Signal handler of the application's shutdown: ends what still runs."""
        self.connections.drain(CLOSING)
        await self.background.end()


RESPONSES: web.AppKey[ResponsesServer] = web.AppKey("responses", ResponsesServer)
