"""Probes, metrics and the OpenAPI document: answers as types, and operations."""

from functools import cache
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from services import __version__
from services.frontend.apis.base import Operation
from services.frontend.apis.common.shared_errors import SHARED
from services.frontend.apis.openapi import document
from services.frontend.http.health import HealthRoutes
from services.frontend.http.mount import Api, Mount


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


def _mount(mount: Mount) -> None:
    routes = HealthRoutes(mount.gateway, mount.registry)

    @cache
    def described() -> bytes:
        return msgspec.json.encode(document(__version__, mount.apis))

    async def openapi(_: web.Request) -> web.Response:
        return web.Response(body=described(), content_type="application/json")

    for path, handler in (
        ("/live", routes.live),
        ("/ready", routes.ready),
        ("/health", routes.health),
        ("/metrics", routes.metrics),
        ("/version", routes.version),
        ("/", routes.hello),
        ("/api/hello", routes.hello),
        ("/openapi.json", openapi),
    ):
        mount.app.router.add_get(path, handler)


def _get(path: str, summary: str, answer: object, **options: Any) -> Operation:
    return Operation(method="get", path=path, summary=summary, answer=answer, **options)


API = Api(
    name="Health",
    title="Health",
    errors=SHARED,
    operations=(
        _get("/live", "Whether the process should keep running", Probe, unavailable=True, public=True),
        _get("/ready", "Whether a turn can be served", Probe, unavailable=True, public=True),
        _get("/health", "What is served, and what is missing", Health, unavailable=True, public=True),
        _get("/metrics", "Metrics for Prometheus", None, text=True, public=True),
        _get("/version", "The release of this server", Version),
        _get("/", "The server's name", Hello, public=True),
        _get("/api/hello", "The server's name", Hello, public=True),
        _get("/openapi.json", "This document", dict[str, Any], public=True),
    ),
    mount=_mount,
)
