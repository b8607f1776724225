"""The WebSocket connections of this frontend: who may open one, and how all of them end."""

import time
from collections.abc import Callable

from aiohttp import web
from structlog.typing import FilteringBoundLogger

from schemas.errors import Invalid
from services.frontend.dialects.responses.dialect import Responses
from services.frontend.dialects.shared_errors import openai_reply
from services.frontend.exchange import EXCHANGE
from services.frontend.responses.intake import Intake
from services.frontend.responses.runner import Runner
from services.frontend.responses.socket import Services, Socket, SocketLimits
from services.frontend.responses.store import MemoryStore, ResponseStore, StoreLimits
from services.runtime.config import FrontendConfig

HEARTBEAT_S = 30.0
"""Between two pings; a client that does not answer one in half that time is gone."""
WRITE_BYTES = 32 * 1024
"""Between two looks at whether the client still reads."""
MEMORY_BYTES = 64 * 1024 * 1024
MEMORY_ENTRIES = 4096
"""What a connection may remember. Where that is not enough the client is told that the response was not found, and
sends everything."""


class Connections:
    """Serves WebSocket connections."""

    def __init__(
        self,
        *,
        dialect: Responses,
        runner: Runner,
        store: ResponseStore,
        intake: Callable[[ResponseStore], Intake],
        config: FrontendConfig,
        log: FilteringBoundLogger,
    ) -> None:
        """`intake`: makes one that looks in a store of the connection's own first."""
        limits = SocketLimits(config.slow_reader_timeout_s, config.max_buffered_bytes)
        self._services = Services(dialect, runner, store, log, limits)
        self._intake = intake
        self._config = config
        self._open: set[Socket] = set()
        self._draining: str | None = None

    def __len__(self) -> int:
        return len(self._open)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Handler of an upgrade. One that is not wanted is answered with 426, on which clients go on over HTTP."""
        ws = web.WebSocketResponse(
            heartbeat=HEARTBEAT_S,
            max_msg_size=self._config.max_body_bytes,
            writer_limit=WRITE_BYTES,
            decode_text=False,
        )
        wanted = self._config.enable_responses_websocket and self._draining is None
        if not wanted or len(self._open) >= self._config.max_websockets or not ws.can_prepare(request):
            return _refused(request)
        await ws.prepare(request)
        memory = self._memory()
        socket = Socket(ws, request, self._services, memory=memory, intake=self._intake(memory))
        self._open.add(socket)
        try:
            await socket.run()
        finally:
            self._open.discard(socket)
        return ws

    def drain(self, reason: str) -> None:
        """Opens no more connections; those that are open end with what runs on them."""
        self._draining = reason
        for socket in list(self._open):
            socket.end(reason)

    def _memory(self) -> MemoryStore:
        limits = StoreLimits(self._services.limits.max_age_s * 2, MEMORY_ENTRIES, MEMORY_BYTES)
        return MemoryStore(limits, time.time)


def _refused(request: web.Request) -> web.Response:
    info = Invalid("This path is for WebSockets, and this server takes none; POST the request instead.").info
    reply = openai_reply(info, request[EXCHANGE].request_id, 426)
    return web.Response(status=426, headers={**reply.headers, "upgrade": "websocket"}, body=reply.body)
