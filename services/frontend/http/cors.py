"""Decides which web pages may use this server (the Fetch standard's CORS protocol). Pure.

A page of an origin that is not listed gets no CORS headers, so its browser withholds the answer. On
a server without API keys that is not enough: any page could make a browser in this network send
turns (a POST of text/plain needs no preflight, a WebSocket has none), so such requests are refused.
Pages of a host name that was made to resolve to this server's address are refused by
`services.runtime.request_headers`.
"""

import re
from collections.abc import Mapping, Sequence

from schemas.errors import Forbidden
from services.frontend.http.rate_limits import rate_header_names

METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
MAX_AGE_S = 600
"""Time for which a browser may cache the answer to a preflight."""
EXPOSED = ", ".join(
    (
        "request-id",
        "x-request-id",
        "x-trace-id",
        "retry-after",
        "x-should-retry",
        "x-turnwire-dropped",
        "x-turnwire-not-enforced",
        *rate_header_names(),
    )
)
"""Response headers that a page may read, besides those that every page may read."""
_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,4096}")
_SAFE = ("GET", "HEAD", "OPTIONS")


class Cors:
    """The origins of pages that may use this server. `origins`: `*` for all; `guarded`: the server
    has API keys."""

    def __init__(self, origins: Sequence[str], *, guarded: bool) -> None:
        self._all = "*" in origins
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)
        self._guarded = guarded

    def check(self, method: str, headers: Mapping[str, str], scheme: str) -> None:
        """Raises Forbidden for a request that pages of a foreign origin must not send to a server
        without keys."""
        origin = headers.get("origin")
        if origin is None or self._guarded or self._allows(origin):
            return
        if method in _SAFE and headers.get("upgrade", "").lower() != "websocket":
            return
        if origin.lower() == f"{scheme}://{headers.get('host', '')}".lower():
            return
        raise Forbidden(
            f"Pages of {origin[:200]} may not use this server; it can be allowed with "
            "--cors-origins.",
            "origin",
        )

    def preflight(self, method: str, headers: Mapping[str, str]) -> dict[str, str] | None:
        """Returns the headers for the answer to a preflight; None for other requests and for
        origins not allowed."""
        origin = headers.get("origin")
        if method != "OPTIONS" or "access-control-request-method" not in headers:
            return None
        if origin is None or not self._allows(origin):
            return None
        answer = {"access-control-allow-methods": METHODS, "access-control-max-age": str(MAX_AGE_S)}
        requested = headers.get("access-control-request-headers", "")
        if _NAMES.fullmatch(requested):
            answer["access-control-allow-headers"] = requested
        if headers.get("access-control-request-private-network") == "true":
            answer["access-control-allow-private-network"] = "true"
        return answer

    def answer_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Returns the CORS headers for the answer to a request, also for an error."""
        answer: dict[str, str] = {}
        origin = headers.get("origin")
        if origin is not None and self._allows(origin):
            answer["access-control-allow-origin"] = "*" if self._all else origin
            answer["access-control-expose-headers"] = EXPOSED
        if self._origins and not self._all:
            answer["vary"] = "origin"
        return answer

    def _allows(self, origin: str) -> bool:
        return self._all or origin.lower() in self._origins
