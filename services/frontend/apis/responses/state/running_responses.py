"""The responses that run in this process without an HTTP answer of their own, and their end with
the process."""

import asyncio
from contextlib import suppress

from aiohttp import web

from schemas.notices import ResponseCancelled, ResponseDeleted, ResponseNotice
from services.frontend.apis.responses.state.background import Background
from services.frontend.apis.responses.state.socket.connections import Connections
from services.frontend.stored.memory import MemoryStore

SETTLE_S = 2.0
"""The time for the last writes to the bucket at shutdown."""


class RunningResponses:
    """Background responses and those on WebSockets, with the store that gets them."""

    def __init__(
        self, store: MemoryStore, background: Background, connections: Connections
    ) -> None:
        self.store = store
        self.background = background
        self.connections = connections

    def apply_notice(self, notice: ResponseNotice) -> None:
        """Applies a notice of another frontend about a stored response."""
        match notice:
            case ResponseCancelled(id):
                self.background.cancel(id)
            case ResponseDeleted(id):
                self.background.delete(id)
                self.store.forget(id)

    async def drain(self) -> None:
        """Accepts nothing new; returns when background responses have ended and all writes to the
        store are done."""
        self.connections.drain()
        try:
            await self.background.drain()
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await self.store.wait_for_writes()

    async def close(self, _app: web.Application) -> None:
        """Handler of the application's shutdown signal: ends running responses."""
        self.connections.drain()
        await self.background.end()


RUNNING_RESPONSES: web.AppKey[RunningResponses] = web.AppKey("responses", RunningResponses)
