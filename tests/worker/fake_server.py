"""The life of a fake inference server: it opens, hangs, refuses, breaks connections and dies.

`FakeServer` has what the fakes of all kinds share. A subclass adds routes.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from tests.worker.fake_vllm import LoRARequest

Event = dict[str, Any]
Lie = Callable[[list[Event]], Iterable[Event | bytes]]
"""Changes the events of an answer."""


def honest(events: list[Event]) -> Iterable[Event | bytes]:
    return events


class FakeServer:
    """One server. `open` starts it on a free port; `kill` breaks every connection."""

    def __init__(
        self,
        key: str | None = None,
        tls: ssl.SSLContext | None = None,
        adapters: Iterable[str] = (),
    ) -> None:
        """`key`: what the header Authorization must have; None: no key is needed."""
        self.key = key
        self._tls = tls
        self.adapters: dict[str, LoRARequest] = {}
        """Those that are loaded, by name."""
        for name in adapters:
            self.load_adapter(name)
        self.lie: Lie = honest
        self.refusals: list[int] = []
        """Statuses with which the next requests are refused."""
        self.hangs = False
        self.requests: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.url = ""
        self._runner: web.AppRunner | None = None

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    def on_kill(self) -> None:
        """Ends what decodes."""

    async def open(self, port: int = 0) -> str:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_routes(self.routes())
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=self._tls)
        await site.start()
        port = self._runner.addresses[0][1]
        scheme = "https" if self._tls else "http"
        self.url = f"{scheme}://127.0.0.1:{port}"
        return self.url

    def kill(self) -> None:
        """Breaks every connection and listens no more, as a process that was killed."""
        assert self._runner is not None
        for site in list(self._runner.sites):
            server: Any = site._server
            server.close()
        self.drop()
        self.on_kill()

    def drop(self) -> None:
        """Breaks every connection; the server stays."""
        assert self._runner is not None
        assert self._runner.server is not None
        for connection in list(self._runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def load_adapter(self, name: str) -> None:
        """As `/v1/load_lora_adapter` of both servers."""
        self.adapters[name] = LoRARequest(name, len(self.adapters) + 1, f"/adapters/{name}")

    # -- for the routes of a subclass

    def model_cards(self, model: str, **more: Any) -> list[dict[str, Any]]:
        """The data of `/v1/models`."""
        adapters = [
            {"id": name, "root": adapter.lora_path, "parent": model, "max_model_len": None}
            for name, adapter in self.adapters.items()
        ]
        return [{"id": model, "parent": None, **more}, *adapters]

    async def hang(self) -> None:
        """Returns when the server does not hang."""
        while self.hangs:
            await asyncio.sleep(0.05)

    def is_allowed(self, request: web.Request) -> bool:
        return self.key is None or request.headers.get("Authorization") == f"Bearer {self.key}"

    async def stream(
        self, request: web.Request, events: AsyncIterator[Event], end: bytes = b"data: [DONE]\n\n"
    ) -> web.StreamResponse:
        """Sends the events, as the lie changes them, and the end of the stream."""
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        async for event in events:
            for sent in self.lie([event]):
                data = sent if isinstance(sent, bytes) else msgspec.json.encode(sent)
                await answer.write(b"data: " + data + b"\n\n")
        await answer.write(end)
        return answer


_Server = TypeVar("_Server", bound=FakeServer)


@asynccontextmanager
async def running(server: _Server) -> AsyncIterator[_Server]:
    """The server, open."""
    await server.open()
    try:
        yield server
    finally:
        await server.close()
