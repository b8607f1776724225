"""Serves the inspector's page, its data as JSON, and changes as server-sent events.

The page has no content of its own: everything comes from `/api`. Each connection gets at most
`ROWS_PER_TICK` rows a tick; a row that waits is sent once, in its latest state.
"""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec
from aiohttp import web
from msgspec import Struct

from schemas.errors import Forbidden
from services.runtime.request_headers import AllowedHosts
from turnwire_tools.inspector.bus_follower import TurnSource
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.images import InspectorImages
from turnwire_tools.inspector.overview import Overview, overview
from turnwire_tools.inspector.search import Hit, SearchQuery, hits
from turnwire_tools.inspector.sections import Sections
from turnwire_tools.inspector.tokens import Vocabularies, tokens_of
from turnwire_tools.inspector.turns import InspectedTurn, Row
from turnwire_tools.inspector.views import row_of, rows_of, session_view, turn_view

TICK_S = 0.5
ROWS_PER_TICK = 500
MAX_SECTIONS = 40
"""Turns of a conversation in one answer."""
MAX_HITS = 100
SEARCH_S = 0.02
"""Time after which a search lets other requests pass."""
MAX_MINUTES = 7 * 24 * 60
MAX_DIGITS = 18
"""Digits of a number in a query, at most."""
PAGE = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_encode = msgspec.json.Encoder().encode
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FoundTurn(Struct, frozen=True):
    """A turn that a search found."""

    row: Row
    hit: Hit


class SearchView(Struct, frozen=True):
    """The newest turns that a search found."""

    found: list[FoundTurn]
    more: bool
    """There are others."""


class OverviewView(Struct, frozen=True):
    """The overview with the rows of the turns that it names."""

    overview: Overview
    rows: dict[str, Row]


class InspectorServer:
    """The web server of one fold."""

    def __init__(
        self,
        fold: Fold,
        source: TurnSource,
        hosts: AllowedHosts,
        *,
        key: str | None,
        vocabularies: Vocabularies | None = None,
        images: InspectorImages | None = None,
    ) -> None:
        """`key`: what a browser has to present; None: nothing, for a loopback address."""
        self._images = images or InspectorImages()
        self._started = time.time()
        self._fold = fold
        self._source = source
        self._hosts = hosts
        self._key = key
        self._vocabularies = vocabularies or Vocabularies()
        self._sections = Sections(fold, self._vocabularies)
        self._files = {
            path.name: path.read_bytes() for path in PAGE.iterdir() if path.suffix in TYPES
        }

    def app(self) -> web.Application:
        """The application."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/page/{name}", self._page),
                web.get("/api/stream", self._stream),
                web.get("/api/overview", self._overview),
                web.get("/api/search", self._search),
                web.get("/api/conversation", self._conversation),
                web.get("/api/images/{hash}", self._image),
                web.get("/api/turns/{id}/text", self._text),
                web.get("/api/turns/{id}", self._turn),
                web.get("/api/turns/{id}/tokens", self._tokens),
                web.get("/api/sessions/{id}", self._session),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            self._hosts.check(request.host)
            if self._admits(request):
                response = await handler(request)
            else:
                response = self._refusal(request)
        except Forbidden as error:
            response = _problem(403, error.info.message)
        except web.HTTPException as error:
            response = _problem(error.status, error.reason)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    def _admits(self, request: web.Request) -> bool:
        if self._key is None:
            return True
        scheme, _, presented = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            presented = request.cookies.get(_cookie(request), "")
        return _equal(presented, self._key)

    def _refusal(self, request: web.Request) -> web.Response:
        """Exchanges the key in the address, which `turnwire inspect` prints, for a cookie."""
        presented = request.query.get("key", "")
        if request.path != "/" or not _equal(presented, self._key or ""):
            return _problem(401, "open the address that turnwire inspect printed, with its key")
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(
            _cookie(request), presented, httponly=True, samesite="Strict", secure=request.secure
        )
        return response

    async def _page(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name", "index.html")
        if name not in self._files:
            raise web.HTTPNotFound(reason="there is no such file")
        return web.Response(
            body=self._files[name], content_type=TYPES[Path(name).suffix], charset="utf-8"
        )

    async def _overview(self, request: web.Request) -> web.Response:
        """The turns of the last minutes; `minutes=0`: all."""
        fold = self._fold
        minutes = _number(request, "minutes", MAX_MINUTES)
        newest = next(reversed(fold.turns.values()), None)
        until = time.time() if self._source.live or newest is None else newest.time
        turns = fold.turns
        oldest = min((turn.time for turn in turns.values()), default=until)
        since = until - 60.0 * minutes if minutes else oldest
        start = min(self._started, oldest) if self._source.live else oldest
        observed = max(start, fold.dropped_until)
        # 20,000 turns take half a second, in which messages and other requests go on.
        kept = list(turns.values())
        sums = await asyncio.to_thread(overview, kept, min(since, until), until, observed)
        names = {*sums.slowest, *(row.worst for row in sums.again)}
        rows = {name: row_of(turns[name]) for name in names if name in turns}
        return _json(OverviewView(sums, rows))

    async def _search(self, request: web.Request) -> web.Response:
        query = SearchQuery(request.query.get("q", "")[:1000], texts=self._fold.texts)
        found: list[FoundTurn] = []
        pause_at = time.monotonic() + SEARCH_S
        for hit in hits(self._fold, query) if query else ():
            if hit is not None and hit.turn in self._fold.turns:
                found.append(FoundTurn(row_of(self._fold.turns[hit.turn]), hit))
            if len(found) > MAX_HITS:
                break
            if time.monotonic() > pause_at:
                await asyncio.sleep(0)
                pause_at = time.monotonic() + SEARCH_S
        return _json(SearchView(found[:MAX_HITS], more=len(found) > MAX_HITS))

    async def _conversation(self, request: web.Request) -> web.Response:
        """The sections of some turns of a session; those that are not kept are left out."""
        names = request.query.get("turns", "").split(",")[:MAX_SECTIONS]
        turns = (self._fold.turns.get(name) for name in names)
        return _json([self._sections.section(turn) for turn in turns if turn is not None])

    async def _text(self, request: web.Request) -> web.Response:
        """All of one text of a turn: `of` is system, tools, parts or answer, `at` its index."""
        turn = self._named(request)
        texts = _texts(turn, request.query.get("of", "")) if self._fold.texts else []
        at = _number(request, "at", len(texts))
        if at >= len(texts):
            raise web.HTTPNotFound(reason="this turn has no such text")
        return _json({"text": texts[at]})

    async def _image(self, request: web.Request) -> web.Response:
        """An image of a request, if the bus has it and lets this command read it."""
        image = None
        if self._fold.texts:
            image = await self._images.get(request.match_info["hash"])
        if image is None:
            raise web.HTTPNotFound(reason="this image cannot be read")
        return web.Response(body=image.data, content_type=image.media_type)

    async def _turn(self, request: web.Request) -> web.Response:
        return _json(turn_view(self._fold, self._named(request)))

    async def _tokens(self, request: web.Request) -> web.Response:
        turn = self._named(request)
        if not self._fold.texts:
            raise web.HTTPForbidden(reason="turnwire inspect runs with --no-texts")
        context = self._fold.prompts.context(turn.id)
        return _json(tokens_of(turn, context, self._vocabularies.of(turn.model)))

    def _named(self, request: web.Request) -> InspectedTurn:
        """The turn that a path names. Raises HTTPNotFound."""
        turn = self._fold.turns.get(request.match_info["id"])
        if turn is None:
            raise web.HTTPNotFound(reason="this turn is not known (any more)")
        return turn

    async def _session(self, request: web.Request) -> web.Response:
        session = session_view(self._fold, request.match_info["id"])
        if session is None:
            raise web.HTTPNotFound(reason="this session is not known (any more)")
        return _json(session)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """All turns, and then those that change; an event each tick shows that the connection
        lives."""
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        fold = self._fold
        with fold.watching() as waiting, suppress(ConnectionResetError):
            while True:
                names = list(islice(waiting, ROWS_PER_TICK))
                for name in names:
                    del waiting[name]
                head = {
                    "started": self._started,
                    "source": self._source.name,
                    "turns": len(fold.turns),
                    "sessions": len(fold.sessions),
                    "live": self._source.live,
                    "lost_at": self._source.lost_at,
                    "texts": fold.texts,
                    "images": self._images.available,
                }
                event = b"event: head\ndata: %b\n\nevent: rows\ndata: %b\n\n"
                await response.write(event % (_encode(head), _encode(rows_of(fold, names))))

                more_wait = len(names) == ROWS_PER_TICK
                await asyncio.sleep(TICK_S / 5 if more_wait else TICK_S)
        return response


def _equal(presented: str, key: str) -> bool:
    """Compares in constant time. Bytes of a request that are not UTF-8 are surrogates."""
    return hmac.compare_digest(presented.encode(errors="backslashreplace"), key.encode())


def _cookie(request: web.Request) -> str:
    """Browsers share cookies among the ports of a host. The port in the `Host` header may be
    anything."""
    return f"turnwire_inspect_{request.get_extra_info('sockname')[1]}"


def _number(request: web.Request, name: str, most: int) -> int:
    """A number in a query, from 0 to `most`; 0 where there is none. Raises HTTPBadRequest for more
    than `MAX_DIGITS` digits."""
    text = request.query.get(name, "")
    if len(text) > MAX_DIGITS:
        raise web.HTTPBadRequest(reason=f"{name} has more than {MAX_DIGITS} digits")
    return min(most, int(text)) if text.isascii() and text.isdigit() else 0


def _texts(turn: InspectedTurn, of: str) -> Sequence[str]:
    """The texts of one kind in a turn."""
    if of == "answer":
        return [block.text for block in turn.blocks]
    head = turn.addition.head
    items = {"system": head.system, "tools": head.tools, "parts": turn.addition.items}
    return [item.text for item in items.get(of, [])]


def _json(value: object) -> web.Response:
    return web.Response(body=_encode(value), content_type="application/json")


def _problem(status: int, message: str) -> web.Response:
    return web.Response(
        status=status,
        body=_encode({"error": {"message": message}}),
        content_type="application/json",
    )
