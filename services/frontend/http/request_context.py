"""The ids, caller and outcome of one HTTP request, for all that handle it."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from aiohttp import web

from services.frontend.http.auth import anyone
from services.frontend.http.errors import FormatName
from services.frontend.http.rate_limits import rate_headers


class RequestContext:
    """One request's ids, caller and outcome, for its response headers and its line in the access
    log."""

    def __init__(self, id: str, client_id: str | None, started: float) -> None:
        self.id = id
        """Hexadecimal. The turn has the same id, and ids of objects contain it."""
        self.request_id = f"req_{id}"
        self.client_id = client_id
        self.started = started
        self.api: FormatName = "shared"
        self.caller = anyone()
        """Identified before the handler is called."""
        self.body_timeout_s: float | None = None
        self.outcome = ""
        self.reports: dict[str, str] = {}
        """Further headers of the response. Set by `report`."""
        self.fields: dict[str, object] = {}
        """Further fields of the log line."""
        self.cors: dict[str, str] = {}
        self.trace_id: str | None = None
        """Set if the request is traced."""

    @property
    def tenant(self) -> str | None:
        """The holder of the key; None where there are no keys."""
        return self.caller.tenant

    @property
    def owner(self) -> str | None:
        """Who may read what the request stores: its rollout, or its tenant."""
        return self.caller.owner

    def open_request(self) -> AbstractContextManager[None]:
        """Counts a request that decodes tokens as open while entered. Raises RateLimited on
        entering."""
        return self.caller.limiter.request()

    def report(self, header: str, field: str, values: Sequence[str]) -> None:
        """Reports something about the request in a header of the response and in the log line.
        `values` must be safe for a header."""
        self.reports[header] = ",".join(values)
        self.fields[field] = values

    def headers(self) -> dict[str, str]:
        """Returns the headers that every response to this request has."""
        headers = {
            "server": "turnwire",
            "request-id": self.request_id,
            "x-request-id": self.client_id or self.request_id,
            **self.cors,
        }
        if self.api != "shared":
            headers |= rate_headers(self.caller.limiter.rates(), self.api, time.time())
        if self.trace_id is not None:
            headers["x-trace-id"] = self.trace_id
        return headers | self.reports


REQUEST_CONTEXT: web.RequestKey[RequestContext] = web.RequestKey("request_context", RequestContext)
TRACE_ID: web.RequestKey[str] = web.RequestKey("trace_id", str)
"""Set if the request is traced."""
OVER_LIMIT: web.RequestKey[bool] = web.RequestKey("over_limit", bool)
"""Whether the connection exceeds the limit of its address. Set by the server."""
