"""The parts of the stateful Responses API, put together, and how they end with the process."""

import asyncio
import time

from aiohttp import web
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from schemas.control import ResponseNotice
from services.frontend.dialects.responses.dialect import Responses
from services.frontend.metrics import FrontendMetrics
from services.frontend.responses.background import Background
from services.frontend.responses.connections import Connections
from services.frontend.responses.history import Histories
from services.frontend.responses.intake import Intake
from services.frontend.responses.managed import Compactor
from services.frontend.responses.runner import Runner
from services.frontend.responses.shared import Peers, SharedStore
from services.frontend.responses.store import MemoryStore, ResponseStore, StoreLimits
from services.frontend.responses.vaults import Vaults
from services.frontend.sse import StreamLimits
from services.frontend.turn_server import TurnServer
from services.frontend.turns import TurnGateway
from services.runtime.config import FrontendConfig
from services.runtime.kv import Bucket

SETTLE_S = 2.0
"""At the end: for the bucket to take what was kept last."""
CLOSING = "This server is shutting down; open a new connection to go on."


class Sharing(Struct, frozen=True):
    """What stored responses are shared by."""

    bucket: Bucket
    peers: Peers


class ResponsesServer:
    """Everything behind `/v1/responses` but the handlers."""

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
        limits = StoreLimits(config.response_store_ttl_s, config.response_store_entries, config.response_store_bytes)
        self._memory = MemoryStore(limits, time.time)
        self._shared: SharedStore | None = None
        self._peers = sharing.peers if sharing is not None else None
        if sharing is not None:
            self._shared = SharedStore(self._memory, sharing.bucket, sharing.peers, log)
        self.store: ResponseStore = self._shared or self._memory
        vaults = Vaults(gateway, config.seal_key_file)
        self.runner = Runner(server, gateway, config, metrics, log)
        compactor = Compactor(self.dialect, self.runner, gateway, vaults)

        def intake(*before: ResponseStore) -> Intake:
            return Intake(self.dialect, Histories(*before, self.store), vaults, compactor)

        self.intake = intake()
        owner = sharing.peers.id if sharing is not None else "here"
        self.background = Background(self.runner, self.store, log, slots=config.max_background, owner=owner)
        self.connections = Connections(
            dialect=self.dialect, runner=self.runner, store=self.store, intake=intake, config=config, log=log
        )

    def heard(self, notice: ResponseNotice) -> None:
        """What another frontend says of a stored response."""
        if notice.action == "cancel":
            self.background.cancel(notice.id)
        elif self._shared is not None:
            self._shared.forget(notice.id)

    def cancel_elsewhere(self, id: str) -> None:
        """Has the frontend cancel a response in which it runs."""
        if self._peers is not None:
            self._peers.call_out(ResponseNotice("cancel", id))

    async def drain(self) -> None:
        """Takes nothing new; returns when what runs in the background has ended and everything is kept."""
        self.connections.drain(CLOSING)
        try:
            await self.background.drain()
        finally:
            if self._shared is not None:
                await asyncio.wait([asyncio.ensure_future(self._shared.settled())], timeout=SETTLE_S)

    async def close(self, _app: web.Application) -> None:
        """Signal handler of the application's shutdown: ends what has not ended by itself."""
        self.connections.drain(CLOSING)
        await self.background.end()


RESPONSES: web.AppKey[ResponsesServer] = web.AppKey("responses", ResponsesServer)
