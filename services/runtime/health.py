"""Serves health over HTTP for a process without an HTTP server. Imported only if configured:
aiohttp takes 9 MB."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client.registry import Collector

from services.runtime.observability.telemetry import render_metrics
from services.runtime.request_headers import replace_invalid_bytes


class HealthServer:
    """Serves /metrics, /live and /ready.

    /live is 200 as long as the event loop runs. /ready is 200 when `not_ready` returns None, else
    503 with the reason that `not_ready` returned.
    """

    def __init__(self, registry: Collector, not_ready: Callable[[], str | None]) -> None:
        self._registry = registry
        self._not_ready = not_ready
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/live", self._live)
        app.router.add_get("/ready", self._ready)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port, a free one for `port` 0. Raises OSError if it is taken."""
        await self._runner.setup()
        replace_invalid_bytes(self._runner.server)
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Closes the port and every connection. May be called without `start`."""
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        body, content_type = render_metrics(self._registry, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _live(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "live"})

    async def _ready(self, _request: web.Request) -> web.Response:
        reason = self._not_ready()
        if reason is None:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "not ready", "reason": reason}, status=503)
