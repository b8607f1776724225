"""Accepts WebSocket connections, a limited number at a time."""

from aiohttp import web

from schemas.errors import Invalid
from services.frontend.apis.responses.errors import FORMAT
from services.frontend.apis.responses.state.request_reader import RequestReader
from services.frontend.apis.responses.state.socket.connection import (
    MAX_FRAME_BYTES,
    SocketConnection,
)
from services.frontend.http.auth import Callers
from services.frontend.http.request_context import REQUEST_CONTEXT

HEARTBEAT_S = 30.0
"""The time between two pings. A client that does not answer in half of it is disconnected."""
WRITE_BYTES = 32 * 1024
"""The number of bytes between two checks whether the client still reads."""


class Connections:
    """The open connections of this process."""

    def __init__(self, reader: RequestReader, callers: Callers) -> None:
        self._reader = reader
        self._callers = callers
        self._config = reader.turns.config
        self._open: set[SocketConnection] = set()
        self._draining = False

    def __len__(self) -> int:
        return len(self._open)

    async def handle(self, http: web.Request) -> web.StreamResponse:
        """Handles an upgrade. A refused one is answered with 426, on which clients continue over
        HTTP."""
        ws = web.WebSocketResponse(
            heartbeat=HEARTBEAT_S,
            max_msg_size=min(self._config.max_body_bytes, MAX_FRAME_BYTES),
            writer_limit=WRITE_BYTES,
        )
        if not self._accepts() or not ws.can_prepare(http):
            return _refused(http)
        await ws.prepare(http)
        socket = SocketConnection(ws, http, self._reader, self._callers)
        self._open.add(socket)
        try:
            await socket.run()
        finally:
            self._open.discard(socket)
        return ws

    def _accepts(self) -> bool:
        """Whether a connection can be opened."""
        if self._draining or not self._config.enable_responses_websocket:
            return False
        return len(self._open) < self._config.max_websockets

    def drain(self) -> None:
        """Accepts no more connections; each open one is closed when its last response has ended."""
        self._draining = True
        for socket in list(self._open):
            socket.end("This server is shutting down; open a new connection to go on.")


def _refused(http: web.Request) -> web.Response:
    message = "No WebSocket can be opened with this request; POST to this path instead."
    reply = FORMAT.reply(Invalid(message).info, http[REQUEST_CONTEXT].request_id, 426)
    headers = {**reply.headers, "upgrade": "websocket"}
    return web.Response(status=426, headers=headers, body=reply.body)
