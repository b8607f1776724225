"""Counts the requests that were refused with status 401 or 403, by reason."""

from prometheus_client import CollectorRegistry, Counter

from schemas.errors import ErrorKind, Refused

REASONS = {
    ErrorKind.UNAUTHORIZED: ("no_key", "wrong_key", "expired_key", "removed_key", "certificate"),
    ErrorKind.FORBIDDEN: ("model", "operator", "rollout", "origin", "host"),
}
"""The reasons of each kind. A label never has what the client has sent."""


class RefusalMetrics:
    """The counters of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            kind: Counter(
                f"turnwire_{kind}_requests",
                "Requests that their senders may not make, by reason.",
                ["reason"],
                registry=registry,
            )
            for kind in REASONS
        }
        for kind, reasons in REASONS.items():
            for reason in reasons:  # from 0: else the first one is not an increase
                self._counters[kind].labels(reason)

    def count(self, error: Refused) -> None:
        """Counts a refused request."""
        kind = error.info.kind
        reason = error.reason if error.reason in REASONS[kind] else "other"
        self._counters[kind].labels(reason).inc()
