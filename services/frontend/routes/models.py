"""GET /v1/models and /v1/models/{id}."""

import msgspec
from aiohttp import web

from services.frontend.dialects.models import entry, listing
from services.frontend.turns import TurnGateway


class ModelRoutes:
    """What is served, for clients of every API."""

    def __init__(self, gateway: TurnGateway) -> None:
        self._gateway = gateway

    async def list(self, request: web.Request) -> web.Response:
        """Every model under each of its names."""
        lifecycles = [*request.query.getall("lifecycle[]", []), *request.query.getall("lifecycle", [])]
        return _json(listing(self._gateway.models(), request.query, lifecycles))

    async def retrieve(self, request: web.Request) -> web.Response:
        """One model by name or alias; a slash in the name may be escaped or not."""
        name = request.match_info["id"]
        return _json(entry(self._gateway.resolve(name), name))


def _json(document: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")
