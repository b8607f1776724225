"""GET /openapi.json: what this frontend serves, as a document for programs."""

import msgspec
from aiohttp import web

from services.frontend.openapi.document import document
from services.runtime.process import VERSION


class OpenApiRoute:
    """Serves the document of the routes that there are."""

    def __init__(self, router: web.UrlDispatcher) -> None:
        """`router`: filled before the first request comes."""
        self._router = router
        self._body: bytes | None = None

    async def get(self, _request: web.Request) -> web.Response:
        """The document."""
        if self._body is None:
            served = served_by(self._router)
            self._body = msgspec.json.encode(document(VERSION, lambda method, path: (method, path) in served))
        return web.Response(body=self._body, content_type="application/json")


def served_by(router: web.UrlDispatcher) -> set[tuple[str, str]]:
    """Method, in lower case, and path of each route. HEAD, which goes with GET, is left out."""
    return {
        (route.method.lower(), route.resource.canonical)
        for route in router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
