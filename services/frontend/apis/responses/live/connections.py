"""The WebSocket connections of this frontend: accepts upgrades, and ends all connections when the process ends."""

from aiohttp import web

from schemas.errors import Invalid
from services.frontend.apis.responses.errors import error_reply
from services.frontend.apis.responses.live.socket import Services, Socket
from services.frontend.http.middleware import REQUEST_CONTEXT
from services.runtime.config import FrontendConfig

HEARTBEAT_S = 30.0
"""Between two pings. A client that does not answer within half that time is disconnected."""
WRITE_BYTES = 32 * 1024
"""What is written between two checks whether the client still reads."""


class Connections:
    """Serves WebSocket connections."""

    def __init__(self, services: Services, config: FrontendConfig) -> None:
        self._services = services
        self._config = config
        self._open: set[Socket] = set()
        self._draining: str | None = None

    def __len__(self) -> int:
        return len(self._open)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Handler of an upgrade. A refused one is answered with 426, on which clients continue over HTTP."""
        ws = web.WebSocketResponse(
            heartbeat=HEARTBEAT_S,
            max_msg_size=self._config.max_body_bytes,
            writer_limit=WRITE_BYTES,
            decode_text=False,
        )
        enabled = self._config.enable_responses_websocket and self._draining is None
        if not enabled or len(self._open) >= self._config.max_websockets or not ws.can_prepare(request):
            info = Invalid("This path is for WebSockets, and this server takes none; POST the request instead.").info
            reply = error_reply(info, request[REQUEST_CONTEXT].request_id, 426)
            return web.Response(status=426, headers={**reply.headers, "upgrade": "websocket"}, body=reply.body)
        await ws.prepare(request)
        socket = Socket(ws, request, self._services)
        self._open.add(socket)
        try:
            await socket.run()
        finally:
            self._open.discard(socket)
        return ws

    def drain(self, reason: str) -> None:
        """Opens no more connections; each open one ends with the last response on it."""
        self._draining = reason
        for socket in list(self._open):
            socket.end(reason)
