"""Serves the inspector's page, its data as JSON, and changes as server-sent events.

The page has no content of its own: all comes from `/api`. Each connection gets at most `ROWS_PER_TICK` rows a tick,
however many turns change; rows that wait are sent once, as they are by then.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
from aiohttp import web

from schemas.errors import Forbidden
from services.cli.inspector.fold import Fold
from services.cli.inspector.tokens import tokens_of
from services.cli.inspector.views import Row, rows_of, search, session_view, turn_view
from services.frontend.http.cors import AllowedHosts
from services.tokenization.detokenizer import Vocabulary

TICK_S = 0.5
ROWS_PER_TICK = 500
IDLE_TICKS = 20
"""After so many without a row, a comment shows that the connection lives."""
PAGE = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src"
    " 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_encode = msgspec.json.Encoder().encode
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Head(msgspec.Struct, frozen=True):
    """The first event of a stream."""

    source: str
    """What is read: the bus's address, or files."""
    turns: int
    sessions: int


class InspectorServer:
    """The web server of one fold."""

    def __init__(
        self, fold: Fold, source: str, hosts: AllowedHosts, *, key: str | None, vocabulary: Vocabulary | None
    ) -> None:
        """`key`: what a browser has to present; None: nothing, for a loopback address."""
        self._fold = fold
        self._source = source
        self._hosts = hosts
        self._key = key
        self._vocabulary = vocabulary
        self._waiting: set[_Rows] = set()
        self._files = {path.name: path.read_bytes() for path in PAGE.iterdir() if path.suffix in TYPES}

    def app(self) -> web.Application:
        """The application."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/page/{name}", self._file),
                web.get("/api/stream", self._stream),
                web.get("/api/search", self._search),
                web.get("/api/turns/{id}", self._turn),
                web.get("/api/turns/{id}/tokens", self._tokens),
                web.get("/api/sessions/{id}", self._session),
            ]
        )
        return app

    async def publish(self) -> None:
        """Passes on what changed, every tick, until it is cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.pass_on()

    def pass_on(self) -> None:
        """Passes on what changed since the last time."""
        changed, self._fold.changed = self._fold.changed, {}
        for waiting in self._waiting:
            waiting.add(changed)

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            self._hosts.check(request.host)
            response = await handler(request) if self._admits(request) else self._refusal(request)
        except Forbidden as error:
            response = _problem(403, error.info.message)
        except web.HTTPException as error:
            response = _problem(error.status, error.reason)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    def _admits(self, request: web.Request) -> bool:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        presented = bearer if scheme.lower() == "bearer" else request.cookies.get(_cookie(request), "")
        return self._key is None or hmac.compare_digest(presented.encode(), self._key.encode())

    def _refusal(self, request: web.Request) -> web.Response:
        """Exchanges the key in the address, which `turnwire inspect` prints, for a cookie."""
        presented = request.query.get("key", "")
        if request.path != "/" or not hmac.compare_digest(presented.encode(), (self._key or "").encode()):
            return _problem(401, "open the address that turnwire inspect printed, with its key")
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(_cookie(request), presented, httponly=True, samesite="Strict", secure=request.secure)
        return response

    async def _index(self, _request: web.Request) -> web.Response:
        return self._page("index.html")

    async def _file(self, request: web.Request) -> web.Response:
        return self._page(request.match_info["name"])

    def _page(self, name: str) -> web.Response:
        data = self._files.get(name)
        if data is None:
            return _problem(404, "there is no such file")
        return web.Response(body=data, content_type=TYPES[Path(name).suffix], charset="utf-8")

    async def _search(self, request: web.Request) -> web.Response:
        return _json(search(self._fold, request.query.get("q", "")))

    async def _turn(self, request: web.Request) -> web.Response:
        turn = self._fold.turns.get(request.match_info["id"])
        return (
            _problem(404, "this turn is not known (any more)") if turn is None else _json(turn_view(self._fold, turn))
        )

    async def _tokens(self, request: web.Request) -> web.Response:
        turn = self._fold.turns.get(request.match_info["id"])
        if turn is None:
            return _problem(404, "this turn is not known (any more)")
        return _json(tokens_of(turn, self._fold.context(turn), self._vocabulary))

    async def _session(self, request: web.Request) -> web.Response:
        found = session_view(self._fold, request.match_info["id"])
        return _problem(404, "this session is not known (any more)") if found is None else _json(found)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """All turns, and then those that change."""
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        rows = _Rows(self._fold)
        self._waiting.add(rows)
        try:
            idle = 0
            while True:
                head = Head(self._source, len(self._fold.turns), len(self._fold.sessions))
                batch = rows.take()
                idle = 0 if batch else idle + 1
                if batch or idle == 1:
                    event = b"event: head\ndata: %b\n\nevent: rows\ndata: %b\n\n" % (_encode(head), _encode(batch))
                    await response.write(event)
                elif idle % IDLE_TICKS == 0:
                    await response.write(b":\n\n")
                await asyncio.sleep(TICK_S if len(batch) < ROWS_PER_TICK else TICK_S / 5)
        except ConnectionResetError:
            pass
        finally:
            self._waiting.discard(rows)
        return response


class _Rows:
    """The turns that one connection has yet to get: the newest first, then those that changed."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._names: dict[str, None] = dict.fromkeys(reversed(fold.turns))

    def add(self, names: Mapping[str, None]) -> None:
        self._names.update(names)

    def take(self) -> list[Row]:
        names = [name for name, _ in zip(self._names, range(ROWS_PER_TICK), strict=False)]
        for name in names:
            del self._names[name]
        return rows_of(self._fold, names)


def _cookie(request: web.Request) -> str:
    """Browsers share cookies among the ports of a host."""
    return f"turnwire_inspect_{request.url.port}"


def _json(value: object) -> web.Response:
    return web.Response(body=_encode(value), content_type="application/json")


def _problem(status: int, message: str) -> web.Response:
    return web.Response(status=status, body=_encode({"error": {"message": message}}), content_type="application/json")
