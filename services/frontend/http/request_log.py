"""Reports requests: a line each in the access log, and counters of refused ones."""

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from schemas.errors import ErrorKind, Refused
from services.frontend.http.auth import OPEN_PATHS
from services.frontend.http.request_context import RequestContext
from services.frontend.http.rollout_paths import mask_rollouts
from services.runtime.observability.telemetry import FilteringBoundLogger

_PROBES = OPEN_PATHS - {"/"}
REASONS = {
    ErrorKind.UNAUTHORIZED: ("no_key", "wrong_key", "expired_key", "removed_key", "certificate"),
    ErrorKind.RATE_LIMITED: (
        "concurrency",
        "requests",
        "counting",
        "tokens",
        "connections",
        "background",
        "streams",
    ),
    ErrorKind.FORBIDDEN: ("model", "operator", "rollout", "origin", "host"),
}
"""The reasons of each kind. A label never has what the client has sent."""


class RefusalMetrics:
    """The counters of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            kind: Counter(
                f"turnwire_{kind}_requests",
                "Requests that their senders may not make, or not now, by reason.",
                ["reason"],
                registry=registry,
            )
            for kind in REASONS
        }
        for kind, reasons in REASONS.items():
            for reason in reasons:  # counts from 0: the first refusal is an increase
                self._counters[kind].labels(reason)

    def count(self, error: Refused) -> None:
        """Counts a refused request."""
        kind = error.info.kind
        reason = error.reason if error.reason in REASONS[kind] else "other"
        self._counters[kind].labels(reason).inc()


def log_access(
    log: FilteringBoundLogger,
    request: web.Request,
    context: RequestContext,
    status: int | None,
    now: float,
) -> None:
    """Writes a request's line in the access log: at level debug for a probe of health."""
    fields: dict[str, object] = {
        "method": request.method,
        "path": mask_rollouts(request.path),
        "status": status,
        "outcome": context.outcome or "ok",
        "request": context.request_id,
        "client_request": context.client_id,
        "tenant": context.tenant,
        "seconds": round(now - context.started, 4),
        "user_agent": request.headers.get("user-agent"),
    }
    if context.trace_id is not None:
        fields["trace_id"] = context.trace_id
    write = log.debug if request.path in _PROBES else log.info
    write("request", **fields, **context.fields)
