"""POST of a turn, for every dialect that understands a request by its body and headers alone."""

from aiohttp import web

from services.frontend.dialects.base import Ask, Dialect
from services.frontend.limits import read_body, understand
from services.frontend.turn_server import TurnServer


class TurnRoute:
    """Serves one dialect's turns."""

    def __init__(self, dialect: Dialect, server: TurnServer, max_body_bytes: int) -> None:
        self._dialect = dialect
        self._server = server
        self._max_body_bytes = max_body_bytes

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Handler: one request."""

        async def read() -> Ask:
            body = await read_body(request, self._max_body_bytes)
            return await understand(self._dialect.parse, body, request.headers)

        return await self._server.serve(request, self._dialect, read)
