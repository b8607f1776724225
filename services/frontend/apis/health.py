"""Serves probes, metrics and the OpenAPI document."""

from functools import cached_property
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from services import __version__
from services.frontend.apis.shared.api import (
    Api,
    ApiSetup,
    Operation,
    encoded_response,
    json_response,
)
from services.frontend.apis.shared.errors import SHARED
from services.frontend.apis.shared.openapi import document
from services.runtime.observability.metrics import LabelledRegistry, process_labels
from services.runtime.observability.telemetry import render_metrics


class Probe(Struct):
    """A probe's answer."""

    status: str


class Health(Struct):
    """Served models and load."""

    ready: bool
    models: list[str]


class Version(Struct):
    """The release."""

    version: str


class Hello(Struct):
    """The server's name and release."""

    name: str
    version: str


class HealthRoutes:
    """Handlers of the paths for operators. Only /version needs a key."""

    def __init__(self, setup: ApiSetup) -> None:
        self._pipeline = setup.pipeline
        self._registry = LabelledRegistry(setup.registry, process_labels("frontend"))
        self._apis = setup.apis

    async def live(self, _request: web.Request) -> web.Response:
        """Answers 503 when the process should be restarted."""
        if not self._pipeline.live():
            return json_response(Probe("failed"), 503)
        return json_response(Probe("live"))

    async def ready(self, _request: web.Request) -> web.Response:
        """Answers 503 while no turn can be served."""
        if not self._pipeline.readiness().get("ready"):
            return json_response(Probe("not ready"), 503)
        return json_response(Probe("ready"))

    async def health(self, _request: web.Request) -> web.Response:
        """Answers with every process and its load, with the status of /ready."""
        detail: dict[str, Any] = self._pipeline.readiness()
        return json_response(detail, 200 if detail.get("ready") else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        """Answers in Prometheus text, or OpenMetrics where the request accepts it."""
        body, content_type = render_metrics(self._registry, request.headers.get("accept", ""))
        return web.Response(body=body, headers={"content-type": content_type})

    async def version(self, _request: web.Request) -> web.Response:
        """Answers with the release."""
        return json_response(Version(__version__))

    async def hello(self, _request: web.Request) -> web.Response:
        """Answers Claude Code, which sends `HEAD /api/hello` (older: `HEAD /`) before its first
        turn."""
        return json_response(Hello("turnwire", __version__))

    async def openapi(self, _request: web.Request) -> web.Response:
        """Answers with the OpenAPI document."""
        return encoded_response(self._document)

    @cached_property
    def _document(self) -> bytes:
        return msgspec.json.encode(document(__version__, self._apis))


def _add_routes(setup: ApiSetup) -> None:
    routes = HealthRoutes(setup)
    router = setup.app.router
    router.add_get("/live", routes.live)
    router.add_get("/ready", routes.ready)
    router.add_get("/health", routes.health)
    router.add_get("/metrics", routes.metrics)
    router.add_get("/version", routes.version)
    router.add_get("/", routes.hello)
    router.add_get("/api/hello", routes.hello)
    router.add_get("/openapi.json", routes.openapi)


def _get(path: str, summary: str, answer: object, **options: Any) -> Operation:
    return Operation(path, summary, method="get", answer=answer, **options)


API = Api(
    name="Health",
    title="Health",
    errors=SHARED,
    operations=(
        _get(
            "/live", "Whether the process should keep running", Probe, unavailable=True, public=True
        ),
        _get("/ready", "Whether a turn can be served", Probe, unavailable=True, public=True),
        _get(
            "/health", "What is served, and what is missing", Health, unavailable=True, public=True
        ),
        _get("/metrics", "Metrics for Prometheus", None, text=True, public=True),
        _get("/version", "The release of this server", Version),
        _get("/", "The server's name", Hello, public=True),
        _get("/api/hello", "The server's name", Hello, public=True),
        _get("/openapi.json", "This document", dict[str, Any], public=True),
    ),
    add_routes=_add_routes,
)
