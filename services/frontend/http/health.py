"""Serves probes, metrics, the version, and the paths that clients request before their first turn."""

from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry

from services import __version__
from services.frontend.pipeline.interfaces import TurnGateway
from services.runtime.telemetry import render_metrics


class HealthRoutes:
    """Handlers of paths that need no key (but /version)."""

    def __init__(self, gateway: TurnGateway, registry: CollectorRegistry) -> None:
        self._gateway = gateway
        self._registry = registry

    async def live(self, _request: web.Request) -> web.Response:
        """Answers 503 when the process should be restarted."""
        live = self._gateway.live()
        return _json({"status": "live" if live else "failed"}, live)

    async def ready(self, _request: web.Request) -> web.Response:
        """Answers 503 while no turn can be served."""
        ready = bool(self._gateway.readiness().get("ready"))
        return _json({"status": "ready" if ready else "not ready"}, ready)

    async def health(self, _request: web.Request) -> web.Response:
        """Answers as /ready, with every process and its load."""
        detail: dict[str, Any] = self._gateway.readiness()
        return _json(detail, bool(detail.get("ready")))

    async def metrics(self, request: web.Request) -> web.Response:
        """Answers in Prometheus text, or OpenMetrics where the request accepts it."""
        body, content_type = render_metrics(self._registry, request.headers.get("accept", ""))
        return web.Response(body=body, headers={"content-type": content_type})

    async def version(self, _request: web.Request) -> web.Response:
        """Answers with the release."""
        return _json({"version": __version__}, True)

    async def hello(self, _request: web.Request) -> web.Response:
        """Answers Claude Code, which sends `HEAD /api/hello` (older: `HEAD /`) before its first turn."""
        return _json({"name": "turnwire", "version": __version__}, True)


def _json(document: object, good: bool) -> web.Response:
    body = msgspec.json.encode(document)
    return web.Response(status=200 if good else 503, body=body, content_type="application/json")
