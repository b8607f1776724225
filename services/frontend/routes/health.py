"""Probes, metrics, and what clients touch to see whether anybody is there."""

from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry

from services.frontend.turns import TurnGateway
from services.runtime.process import VERSION
from services.runtime.telemetry import render_metrics


class HealthRoutes:
    """Open to all, whatever keys there are."""

    def __init__(self, gateway: TurnGateway, registry: CollectorRegistry) -> None:
        self._gateway = gateway
        self._registry = registry

    async def live(self, _request: web.Request) -> web.Response:
        """503 when the process should be restarted."""
        live = self._gateway.live()
        return _json({"status": "live" if live else "failed"}, live)

    async def ready(self, _request: web.Request) -> web.Response:
        """503 while no turn can be served."""
        ready = bool(self._gateway.readiness().get("ready"))
        return _json({"status": "ready" if ready else "not ready"}, ready)

    async def health(self, _request: web.Request) -> web.Response:
        """As /ready, with what is there and what is missing."""
        detail: dict[str, Any] = self._gateway.readiness()
        return _json(detail, bool(detail.get("ready")))

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text, or OpenMetrics where it is asked for."""
        body, content_type = render_metrics(self._registry, request.headers.get("accept", ""))
        return web.Response(body=body, headers={"content-type": content_type})

    async def version(self, _request: web.Request) -> web.Response:
        """Which release this is."""
        return _json({"version": VERSION}, True)

    async def hello(self, _request: web.Request) -> web.Response:
        """Claude Code asks `HEAD /api/hello` (older: `HEAD /`) before its first turn."""
        return _json({"name": "turnwire", "version": VERSION}, True)


def _json(document: object, good: bool) -> web.Response:
    return web.Response(
        status=200 if good else 503, body=msgspec.json.encode(document), content_type="application/json"
    )
