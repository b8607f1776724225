"""The interface between an API and the HTTP application: `Api` describes one, and gets an
`ApiSetup` to add its routes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec
from aiohttp import web
from msgspec import Struct
from prometheus_client import CollectorRegistry

from services.frontend.http.auth import Callers
from services.frontend.http.errors import ErrorFormat
from services.frontend.rollouts.rollouts import Rollouts
from services.frontend.stored.memory import MemoryStore
from services.frontend.turns.interfaces import Pipeline
from services.frontend.turns.turn_service import TurnService
from services.runtime.config.frontend import FrontendConfig
from services.runtime.observability.telemetry import FilteringBoundLogger

WEATHER_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
"""The schema of the tool in example requests."""


class Query(Struct, frozen=True):
    """A parameter of the query string."""

    name: str
    schema: dict[str, object]
    description: str


class Operation(Struct, frozen=True):
    """One method of one path, for the OpenAPI document."""

    path: str
    summary: str
    method: Literal["get", "post", "put", "delete"] = "post"
    answer: object = None
    """The type of the JSON answer."""
    body: object = None
    """The type of the request's body."""
    required: tuple[str, ...] = ()
    """Members of the body that are optional in its type and required by this operation."""
    example: object = None
    """A request body to start with."""
    events: object = ""
    """The answer may also be a stream of events: the union of their types, or a pattern of their
    names ("message" for events without one)."""
    lines: tuple[type, ...] = ()
    """The answer is lines of JSON, each of one of these types."""
    binary: bool = False
    """The answer is bytes."""
    text: bool = False
    """The answer is text instead of JSON."""
    query: tuple[Query, ...] = ()
    id: str = ""
    """Description of `{id}` in the path."""
    unavailable: bool = False
    """The answer may also have status 503, while the server cannot serve turns."""
    cached: bool = False
    """The answer has an ETag and may be 304."""
    upgrade: bool = False
    """Opens a WebSocket; other requests get 426."""
    public: bool = False
    """Needs no key and returns no errors of its own."""


def _always(_config: FrontendConfig) -> bool:
    return True


class Api(Struct, frozen=True, kw_only=True):
    """One HTTP API. A module or package under `apis/` exports it as `API`; `app.APIS` lists all."""

    name: str
    """Prefix of its types in the OpenAPI document."""
    title: str
    """Its group in the OpenAPI document."""
    errors: ErrorFormat
    paths: tuple[str, ...] = ()
    """Errors under these paths have its format, even on unknown paths; errors elsewhere have the
    shared format."""
    operations: tuple[Operation, ...]
    parts: tuple[type, ...] = ()
    """Types of parts of answers that the types of answers and events do not contain, but name."""
    add_routes: "Callable[[ApiSetup], None]"
    enabled: Callable[[FrontendConfig], bool] = _always


def json_response(document: object, status: int = 200) -> web.Response:
    """An answer with a document."""
    return encoded_response(msgspec.json.encode(document), status)


def encoded_response(body: bytes, status: int = 200) -> web.Response:
    """An answer with the JSON of a document."""
    return web.Response(status=status, body=body, content_type="application/json")


@dataclass
class ApiSetup:
    """The parts of the application with which an API adds its routes."""

    app: web.Application
    config: FrontendConfig
    pipeline: Pipeline
    """For its state; requests go through `turns`."""
    turns: TurnService
    registry: CollectorRegistry
    log: FilteringBoundLogger
    apis: tuple[Api, ...]
    """All APIs of the application."""
    callers: Callers
    store: MemoryStore
    rollouts: Rollouts | None
    """None if there are no rollouts."""
